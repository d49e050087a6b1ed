"""`holdfast doctor --stack`: the order of the checks, and what is said about each part."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from holdfast.adapters.aws.clients import make_retrying_client
from holdfast.config.chat import ChatSettings
from holdfast.config.heartbeat import read_heartbeat_settings
from holdfast.config.reading import read_settings
from holdfast.config.variables import find_misspelt, list_settings_kinds
from holdfast.core.checks import CheckLevel, CheckResult, fail, ok, warn
from holdfast.doctor.event_sources import check_mapping
from holdfast.doctor.runner import Check, CheckFailed, require_valid_settings, run_checks
from holdfast.doctor.stack import aws_reader as kinds
from holdfast.doctor.stack.alarms import ALARM, check_topic, read_alarms
from holdfast.doctor.stack.aws_reader import AwsReader, shorten_arn
from holdfast.doctor.stack.components import Component, DeployedFunction, DeployedService
from holdfast.doctor.stack.deployment import Deployment, read_deployment
from holdfast.doctor.stack.permissions import ComponentKind
from holdfast.doctor.stack.queues import (
    DEAD_LETTER_QUEUE,
    WORK_QUEUE,
    DeadLetterQueue,
    make_subject,
)
from holdfast.doctor.stack.roles import ROLE, read_role
from holdfast.doctor.stack.tables import list_recovery_checks
from holdfast.doctor.state_machine import check_definition
from holdfast.doctor.stores import check_chat_tables, check_job_tables

_DEFAULT_STOP_SECONDS = 30  # of Fargate, if the task definition names none
_PROFILES = ChatSettings.to_variable("profiles")  # may be a file that only the function has


def examine_stack(
    name: str, make_client: Callable[[str], Any] = make_retrying_client
) -> Iterator[CheckResult]:
    """Compare a deployed stack, and those it nests, with what the code needs.

    Yields the problems of each part, or one result that it has none. Nothing is changed.
    """
    reader = AwsReader(make_client)
    return run_checks(reader, ("stack", partial(_examine, name)))


def _examine(name: str, reader: AwsReader) -> Iterator[CheckResult]:
    yield from _check_status(name, reader.describe_stack(name))
    yield from _examine_resources(name, reader)


def _check_status(name: str, stack: Mapping[str, Any]) -> Iterator[CheckResult]:
    status = stack["StackStatus"]
    reason = stack.get("StackStatusReason") or "no reason is given"
    if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"):
        yield ok(f"{name} is deployed ({status})")
    elif status.endswith("IN_PROGRESS"):
        yield warn(f"{name} is being changed ({status})", "check again when that is done")
    elif status == "UPDATE_ROLLBACK_COMPLETE":
        yield warn(
            f"the last update of {name} was rolled back: {reason}",
            f"`aws cloudformation describe-stack-events --stack-name {name}` shows why",
        )
    else:
        yield fail(
            f"{name} is {status}: {reason}",
            f"`aws cloudformation describe-stack-events --stack-name {name}` shows why",
        )


def _examine_resources(name: str, reader: AwsReader) -> Iterator[CheckResult]:
    resources = list(reader.list_resources(name))
    deployment = read_deployment(reader, resources)
    if not (deployment.queues or deployment.components or deployment.problems):
        yield warn(
            f"{name} has nothing that Holdfast uses",
            "name the stack that was deployed from infra/",
        )
    yield from deployment.problems
    for examine in (_examine_queues, _examine_parts, _examine_tables):
        yield from examine(deployment)
    alarms = [each.physical_id for each in resources if each.kind == kinds.ALARM]
    yield from _examine_alarms(reader, alarms)
    for topic in (each.physical_id for each in resources if each.kind == kinds.TOPIC):
        check = partial(check_topic, reader)
        yield from _summarize(
            f"topic {shorten_arn(topic)}", run_checks(topic, ("subscriptions", check))
        )


def _summarize(part: str, results: Iterable[CheckResult]) -> Iterator[CheckResult]:
    """Yield the problems of a part with its name, or one result that it has none."""
    problems = [
        replace(result, check=f"{part}: {result.check}")
        for result in results
        if result.level is not CheckLevel.OK
    ]
    yield from problems or [ok("as the code needs it", check=part)]


# -- queues


def _examine_queues(deployment: Deployment) -> Iterator[CheckResult]:
    sources: dict[str, list[str]] = {}
    for queue in deployment.queues.values():
        if queue.dead_letters_arn is not None:
            sources.setdefault(queue.dead_letters_arn, []).append(queue.arn)
    for arn, queue in deployment.queues.items():
        if arn in sources:
            dead = DeadLetterQueue(queue, sources[arn])
            results = run_checks(dead, *DEAD_LETTER_QUEUE)
        else:
            results = _examine_queue(deployment, arn)
        yield from _summarize(f"queue {queue.attributes.name}", results)


def _examine_queue(deployment: Deployment, arn: str) -> Iterator[CheckResult]:
    def examine(arn: str) -> Iterator[CheckResult]:
        with require_valid_settings():
            settings = deployment.find_queue_settings(arn)
        subject = make_subject(deployment.reader, deployment.queues[arn], settings)
        return run_checks(subject, *WORK_QUEUE)

    return run_checks(arn, ("settings", examine))


# -- functions, services and state machines, with their roles


def _examine_parts(deployment: Deployment) -> Iterator[CheckResult]:
    components = deployment.components
    exports = (each for each in components if each.kind is ComponentKind.EXPORT_SERVICE)
    env = next((each.env for each in exports), {})
    parts: dict[str, Iterator[CheckResult]] = {}
    for function in deployment.functions:
        check = partial(_check_mappings, deployment)
        parts[function.part] = run_checks(function, ("event source", check))
    for service in deployment.services:
        parts[service.part] = run_checks(service, *SERVICE)
    for machine in deployment.machines:
        check_machine = partial(_check_machine, env)
        parts[machine.part] = run_checks(machine.definition, ("definition", check_machine))
    rows = _list_component_checks(deployment)
    for part, results in parts.items():
        if own := [each for each in components if each.part == part]:
            yield from _summarize(
                part, chain(results, *(run_checks(each, *rows) for each in own))
            )


def _list_component_checks(deployment: Deployment) -> tuple[Check[Component], ...]:
    return (
        ("settings", _check_settings),
        ("store", _check_store),
        ("role", partial(_check_role, deployment.reader)),
    )


def _check_machine(env: Mapping[str, str], definition: Any) -> Iterator[CheckResult]:
    with require_valid_settings():
        interval = read_heartbeat_settings(env).interval_seconds
    return check_definition(definition, interval)


def _check_mappings(
    deployment: Deployment, function: DeployedFunction
) -> Iterator[CheckResult]:
    timeout = int(function.configuration["Timeout"])
    for mapping in function.mappings:
        queue = deployment.queues.get(mapping["EventSourceArn"])
        if queue is not None:
            visibility = queue.attributes.number("VisibilityTimeout", 30)
            yield from check_mapping(mapping, timeout, visibility)


def _check_settings(component: Component) -> Iterator[CheckResult]:
    """Read the settings as the component does."""
    env = {name: value for name, value in component.env.items() if name != _PROFILES}
    with require_valid_settings():
        for kind in list_settings_kinds():
            read_settings(kind, env)
    for problem in find_misspelt(env):
        yield warn(problem, "correct the name, and deploy the stack again")


def _check_store(component: Component) -> Iterator[CheckResult]:
    """Check that what must be kept is in DynamoDB: a function and a task lose their files."""
    if component.store is not None and not component.store.startswith("dynamodb:"):
        yield fail(
            f"its store is {component.store}, which it loses when it ends",
            "set HOLDFAST_CHAT_STORE, or --jobs of `export serve`, to dynamodb:PREFIX",
        )


def _check_role(reader: AwsReader, component: Component) -> Iterator[CheckResult]:
    if not component.role:
        remedy = "set TaskRoleArn of its task definition, as the templates of infra/ do"
        raise CheckFailed("it has no role, so it may not call AWS", remedy)
    return run_checks(read_role(reader, component), *ROLE)


def _check_stop(service: DeployedService) -> Iterator[CheckResult]:
    """Compare the time until SIGKILL with the time that the command needs to drain."""
    stop = int(service.container.get("stopTimeout") or _DEFAULT_STOP_SECONDS)
    drain = service.drain_seconds
    text = f"SIGKILL follows after {stop} s, and the drain may take {drain:g} s"
    if stop <= drain:
        yield fail(
            f"{text}: work is cut off at every deployment",
            f"set stopTimeout to {min(120, int(drain) + 10)}, or --drain below it",
        )
    else:
        yield ok(text)


def _check_running(service: DeployedService) -> Iterator[CheckResult]:
    running, desired = (int(service.service[f"{n}Count"]) for n in ("running", "desired"))
    text = f"{running} of {desired} tasks run"
    if running < desired:
        yield warn(
            text, "the service's events say why: `aws ecs describe-services`, and its log"
        )
    else:
        yield ok(text)


SERVICE = (("stop timeout", _check_stop), ("tasks", _check_running))


# -- tables


def _examine_tables(deployment: Deployment) -> Iterator[CheckResult]:
    more = list_recovery_checks(deployment.reader)
    stores = {
        (each.kind is ComponentKind.EXPORT_SERVICE, each.store)
        for each in deployment.components
    }
    for of_jobs, url in sorted((of_jobs, url) for of_jobs, url in stores if url):
        if url.startswith("dynamodb:"):
            check = partial(
                check_job_tables if of_jobs else check_chat_tables,
                client=deployment.reader.client("dynamodb"),
                more=more,
            )
            yield from _summarize(f"tables {url}", run_checks(url, ("table", check)))


# -- alarms


def _examine_alarms(reader: AwsReader, names: list[str]) -> Iterator[CheckResult]:
    def examine(names: list[str]) -> Iterator[CheckResult]:
        for alarm in read_alarms(reader, names):
            yield from _summarize(f"alarm {alarm['AlarmName']}", run_checks(alarm, *ALARM))

    yield from run_checks(names, ("alarms", examine))
