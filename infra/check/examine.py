"""The order of the checks, and what is said about each part."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from infra.check.alarms import ALARM, check_topic, read_alarms
from infra.check.arns import shorten_arn
from infra.check.aws_reader import AwsReader
from infra.check.deployment import Component, Deployment, Part
from infra.check.functions import read_functions
from infra.check.machines import read_machines
from infra.check.permissions import Use
from infra.check.queues import (
    check_dead_letter_retention,
    check_redrive_allow_policy,
    check_work_queue,
    read_other_queues,
    read_queue,
)
from infra.check.roles import check_role
from infra.check.services import read_services

from holdfast.aws.clients import make_retrying_client
from holdfast.chat.checks import CONVERSATION_STORE
from holdfast.chat.settings import ChatSettings
from holdfast.doctor.checks import CheckLevel, CheckResult, fail, ok, run_checks, warn
from holdfast.doctor.stores import Table, check_tables
from holdfast.exports.checks import JOB_STORE
from holdfast.settings import read_settings
from holdfast.variables import find_misspelt, list_settings_kinds

_PROFILES = ChatSettings.to_variable("profiles")  # may be a file that only the function has


def examine_stack(
    name: str, make_client: Callable[[str], Any] = make_retrying_client
) -> Iterator[CheckResult]:
    """Compare a deployed stack, and those it nests, with what the code needs.

    Yields the problems of each part, or one result that it has none. Nothing is changed.
    """
    return run_checks(AwsReader(make_client), ("stack", partial(_examine, name)))


def _examine(name: str, reader: AwsReader) -> Iterator[CheckResult]:
    yield _check_status(name, reader)
    deployment = _read_deployment(name, reader)
    if not (deployment.queues or deployment.parts or deployment.problems):
        yield warn(
            f"{name} has nothing that Holdfast uses",
            "name the stack that was deployed from infra/",
        )
    yield from deployment.problems
    yield from run_checks(deployment, *DEPLOYMENT)


def _check_status(name: str, reader: AwsReader) -> CheckResult:
    stack = reader.describe_stack(name)
    status = stack["StackStatus"]
    reason = stack.get("StackStatusReason") or "no reason is given"
    events = f"`aws cloudformation describe-stack-events --stack-name {name}` shows why"
    if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"):
        return ok(f"{name} is deployed ({status})")
    if status.endswith("IN_PROGRESS"):
        return warn(f"{name} is being changed ({status})", "check again when that is done")
    if status == "UPDATE_ROLLBACK_COMPLETE":
        return warn(f"the last update of {name} was rolled back: {reason}", events)
    return fail(f"{name} is {status}: {reason}", events)


def _read_deployment(name: str, reader: AwsReader) -> Deployment:
    """Read the resources of a stack. What cannot be read is noted in `problems`."""
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for kind, physical_id in reader.list_resources(name):
        ids[kind].append(physical_id)
    deployment = Deployment(reader, ids)
    for url in ids["AWS::SQS::Queue"]:
        read_queue(deployment, url)
    read_functions(deployment)
    read_services(deployment)
    read_machines(deployment)
    read_other_queues(deployment)
    return deployment


def _summarize(part: str, results: Iterable[CheckResult]) -> Iterator[CheckResult]:
    """Yield the problems of a part with its name, or one result that it has none."""
    problems = [
        replace(result, check=f"{part}: {result.check}")
        for result in results
        if result.level is not CheckLevel.OK
    ]
    yield from problems or [ok("as the code needs it", check=part)]


def _examine_queues(deployment: Deployment) -> Iterator[CheckResult]:
    queues = deployment.queues.values()
    for queue in queues:
        if sources := [each.arn for each in queues if each.dead_letters_arn == queue.arn]:
            results = run_checks(
                queue,
                ("retention", check_dead_letter_retention),
                ("redrive allow", partial(check_redrive_allow_policy, sources)),
            )
        else:
            results = run_checks(queue, ("settings", partial(check_work_queue, deployment)))
        yield from _summarize(f"queue {queue.name}", results)


# -- functions, services and state machines, with their roles


def _examine_parts(deployment: Deployment) -> Iterator[CheckResult]:
    for part in deployment.parts:
        role = ("role", partial(_check_role, deployment, part))
        results = chain(
            run_checks(deployment, *part.checks),
            run_checks(part, ("settings", _check_settings), ("store", _check_store)),
            *(run_checks(component, role) for component in part.components),
        )
        yield from _summarize(part.name, results)


def _check_settings(part: Part) -> Iterator[CheckResult]:
    """Read the settings as the part does."""
    env = {name: value for name, value in part.env.items() if name != _PROFILES}
    for kind in list_settings_kinds():
        read_settings(kind, env)
    for problem in find_misspelt(env):
        yield warn(problem, "correct the name, and deploy the stack again")


def _check_store(part: Part) -> Iterator[CheckResult]:
    """Check that what must be kept is in DynamoDB: a function and a task lose their files."""
    if part.store is not None and not part.store.startswith("dynamodb:"):
        yield fail(
            f"its store is {part.store}, which it loses when it ends",
            "set HOLDFAST_CHAT_STORE, or --jobs of `export serve`, to dynamodb:PREFIX",
        )


def _check_role(
    deployment: Deployment, part: Part, component: Component
) -> Iterator[CheckResult]:
    """Check a role, also on the queues for dead letters of the part's queues."""
    sources = map(deployment.queues.get, part.receives_from)
    arns = {source.dead_letters_arn for source in sources if source}
    uses = {**component.uses, Use.DEAD_LETTERS: sorted(filter(None, arns))}
    return check_role(deployment.reader, replace(component, uses=uses))


# -- tables


def _examine_tables(deployment: Deployment) -> Iterator[CheckResult]:
    reader = deployment.reader
    more = (("recovery", partial(_check_recovery, reader)), ("protection", _check_protection))
    stores = {(part.is_export_service, part.store or "") for part in deployment.parts}
    for is_for_jobs, url in sorted(stores):
        if url.startswith("dynamodb:"):
            kind = JOB_STORE if is_for_jobs else CONVERSATION_STORE
            check = partial(check_tables, kind, client=reader.client("dynamodb"), more=more)
            yield from _summarize(f"tables {url}", run_checks(url, ("table", check)))


def _check_recovery(reader: AwsReader, table: Table) -> Iterator[CheckResult]:
    """Check that the table can be restored to a point in time."""
    name = table.name
    backups = reader.read("dynamodb", "describe_continuous_backups", name, TableName=name)
    recovery = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    if recovery.get("PointInTimeRecoveryStatus") != "ENABLED":
        yield warn(
            f"{name} cannot be restored to a point in time",
            f"`aws dynamodb update-continuous-backups --table-name {name} "
            "--point-in-time-recovery-specification PointInTimeRecoveryEnabled=true`",
        )


def _check_protection(table: Table) -> Iterator[CheckResult]:
    """Check that the table cannot be deleted by mistake."""
    name = table.name
    if not table.description.get("DeletionProtectionEnabled"):
        yield warn(
            f"{name} can be deleted with all its rows",
            f"`aws dynamodb update-table --table-name {name} --deletion-protection-enabled`",
        )


# -- alarms


def _examine_alarms(deployment: Deployment) -> Iterator[CheckResult]:
    for alarm in read_alarms(deployment.reader, deployment.ids["AWS::CloudWatch::Alarm"]):
        yield from _summarize(f"alarm {alarm['AlarmName']}", run_checks(alarm, *ALARM))


def _examine_topics(deployment: Deployment) -> Iterator[CheckResult]:
    check = ("subscriptions", partial(check_topic, deployment.reader))
    for topic in deployment.ids["AWS::SNS::Topic"]:
        yield from _summarize(f"topic {shorten_arn(topic)}", run_checks(topic, check))


DEPLOYMENT = (
    ("queues", _examine_queues),
    ("parts", _examine_parts),
    ("tables", _examine_tables),
    ("alarms", _examine_alarms),
    ("topics", _examine_topics),
)
