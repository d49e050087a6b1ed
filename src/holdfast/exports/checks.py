"""Checks of exports: settings, downloads, job store, state machine.

`holdfast export doctor` runs them.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.doctor.checks import CheckFailed, CheckResult, fail, ok, run_checks, warn
from holdfast.doctor.stores import StoreKind, StoreTables, check_store, explain_aws_errors
from holdfast.errors import ConfigError
from holdfast.exports.building import create_job_tables, open_jobs
from holdfast.exports.errors import JobNotFound
from holdfast.exports.model import ACTIVE, CallbackState
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.settings import HeartbeatSettings, check_interval, find_job_store
from holdfast.exports.sqlite_jobs import JOBS
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.settings import read_settings
from holdfast.text import format_count
from holdfast.version import format_install_command

_WAIT_SUFFIX = ".waitForTaskToken"
_TOKENS = ("$$.Task.Token", "$states.context.Task.Token")
_LEASE_SECONDS = 40.0  # a lease of this length gives each call five seconds
_QUIET_SECONDS = 600.0  # without progress, after which doctor warns


def examine_exports(target: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check exports and yield the results one by one. Nothing is left behind."""
    return run_checks(env, *EXPORTS)


def _check_settings(env: Mapping[str, str]) -> Iterator[CheckResult]:
    heartbeats = read_settings(HeartbeatSettings, env)
    if heartbeats.enabled:
        text = f"they are on, every {heartbeats.interval_seconds:g} s"
        yield ok(text, check="heartbeats")
    else:
        yield warn(
            "they are off, so Step Functions times out jobs that take longer than its "
            "HeartbeatSeconds",
            "set STEP_FUNCTIONS_HEARTBEAT_ENABLED to true, or unset it",
            check="heartbeats",
        )
    if (result := heartbeats.check_timeout()) is not None:
        yield replace(result, check="heartbeat")


def _check_pycurl(env: Mapping[str, str]) -> Iterator[CheckResult]:
    try:
        import pycurl
    except ImportError:
        yield fail("is not installed", format_install_command("export"))
    else:
        yield ok(f"is installed, with libcurl {pycurl.version_info()[1]}")


def _check_job_store(env: Mapping[str, str]) -> Iterator[CheckResult]:
    return check_store(JOB_STORE, find_job_store(env), env)


EXPORTS = (_check_settings, _check_pycurl, _check_job_store)


# -- the job store


def _define_tables(prefix: str) -> StoreTables:
    from holdfast.exports.dynamodb import tables

    names = tables.JobTables(f"{prefix}{tables.JOBS}", f"{prefix}{tables.TASKS}")
    expiring = dict.fromkeys((names.jobs, names.tasks), "ttl")
    command = tables.format_tables_command(names)
    return StoreTables(tables.define_tables(names), expiring, command)


def _examine_jobs(jobs: JobStateRepository, env: Mapping[str, str]) -> Iterator[CheckResult]:
    with suppress(JobNotFound):
        jobs.note_progress("holdfast-doctor")  # needs write permission; no such job exists
    active = [job for status in ACTIVE for job in jobs.find_by_status(status)]
    with_token = sum(job.has_task_token() for job in active)
    yield ok(f"{len(active)} active, {with_token} of them with a task token", check="jobs")
    if pending := sum(job.callback.state is CallbackState.PENDING for job in active):
        yield warn(
            f"{format_count(pending, 'decided job')} whose result has not reached Step "
            "Functions",
            "run a service that can reach it, with `holdfast export serve`",
            check="callbacks",
        )
    before = SYSTEM_CLOCK.time() - _QUIET_SECONDS
    if unmoved := sum(job.last_progress_at < before for job in active):
        yield warn(
            f"{format_count(unmoved, 'active job')} without progress for "
            f"{_QUIET_SECONDS / 60:g} minutes",
            "`holdfast export list` shows them; check that a service is running",
            check="progress",
        )


JOB_STORE = StoreKind(
    JOBS, _define_tables, create_job_tables, open_jobs, _examine_jobs, "job", "--jobs"
)


# -- a state machine that waits for Holdfast's callbacks
#
# Every state whose resource ends with .waitForTaskToken is checked, also inside Parallel and
# Map states. A definition may contain anything, so unexpected parts of it are skipped.


@dataclass(frozen=True, slots=True)
class TaskTokenState:
    """A state that waits for a task token.

    `interval_seconds` is the time between two heartbeats, or None if it is unknown.
    """

    name: str
    fields: Mapping[str, Any]
    interval_seconds: float | None

    def get_number(self, name: str) -> float | None:
        """Return a field's number, or None if the state takes it from its input."""
        value = self.fields.get(name)
        return float(value) if isinstance(value, int | float) and value is not True else None


def examine_machine(source: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check the state machine with that ARN, or in that file, against the heartbeats' settings.

    If the settings are wrong, HeartbeatSeconds is not checked.
    """

    def examine(source: str) -> Iterator[CheckResult]:
        interval_seconds = None
        with suppress(ConfigError):
            interval_seconds = read_settings(HeartbeatSettings, env).interval_seconds
        is_arn = source.startswith("arn:")
        definition = _describe(source) if is_arn else _read_definition(source)
        return check_definition(definition, interval_seconds)

    return run_checks(source, ("state machine", examine))


def check_definition(definition: Any, interval_seconds: float | None) -> Iterator[CheckResult]:
    """Check a definition in the Amazon States Language."""
    waiting = [
        TaskTokenState(name, state, interval_seconds)
        for name, state in iter_states(definition)
        if state.get("Type") == "Task" and str(state.get("Resource", "")).endswith(_WAIT_SUFFIX)
    ]
    if not waiting:
        yield warn(
            "none of its states waits for a task token",
            f"give the state that starts the job a resource that ends with {_WAIT_SUFFIX}",
        )
    for state in waiting:
        yield from run_checks(state, *WAITING_STATE)


def iter_states(machine: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names and definitions of all states, at any depth."""
    if not isinstance(machine, Mapping) or not isinstance(machine.get("States"), Mapping):
        return
    for name, state in machine["States"].items():
        if not isinstance(state, Mapping):
            continue
        yield str(name), state
        branches = state.get("Branches")
        nested = list(branches) if isinstance(branches, list) else []
        for nested_machine in [*nested, state.get("Iterator"), state.get("ItemProcessor")]:
            yield from iter_states(nested_machine)


# -- one state


def _check_heartbeat(state: TaskTokenState) -> Iterator[CheckResult]:
    if (interval := state.interval_seconds) is None:
        return
    seconds = state.get_number("HeartbeatSeconds")
    if seconds is not None:
        result = check_interval(interval, seconds)
        yield replace(result, found=f"{state.name}: {result.found}")
    elif _is_missing(state, "HeartbeatSeconds"):
        yield fail(
            f"{state.name} declares no HeartbeatSeconds: if the service dies, this is noticed "
            "only after TimeoutSeconds",
            f"set HeartbeatSeconds to {3 * interval:g} or more, three times the interval",
        )
    else:
        yield warn(
            f"{state.name} takes HeartbeatSeconds from its input, so it cannot be checked here",
            f"make sure that it is {3 * interval:g} or more, three times the interval",
        )


def _check_timeout(state: TaskTokenState) -> Iterator[CheckResult]:
    heartbeat, seconds = map(state.get_number, ("HeartbeatSeconds", "TimeoutSeconds"))
    name = state.name
    if _is_missing(state, "TimeoutSeconds"):
        yield warn(
            f"{name} declares no TimeoutSeconds, so it is 99999999 s, which is three years",
            "set it to the longest time a job may take, with a margin; heartbeats do not "
            "prolong it",
        )
    elif seconds is None:
        yield ok(f"{name} takes TimeoutSeconds from its input")
    elif heartbeat is not None and seconds <= heartbeat:
        yield fail(
            f"{name}: TimeoutSeconds {seconds:g} is not above HeartbeatSeconds {heartbeat:g}",
            "set it to the longest time a job may take, with a margin",
        )
    else:
        yield ok(f"{name}: a job has {seconds:g} s in all; heartbeats do not prolong it")


def _is_missing(state: TaskTokenState, name: str) -> bool:
    return state.fields.get(name) is None and f"{name}Path" not in state.fields


def _check_token(state: TaskTokenState) -> Iterator[CheckResult]:
    arguments = [state.fields.get("Parameters"), state.fields.get("Arguments")]
    if not any(token in text for text in _iter_texts(arguments) for token in _TOKENS):
        yield fail(
            f"{state.name} does not send its task token: no worker can call back, and the "
            "state waits until its timeout",
            'put "taskToken.$": "$$.Task.Token" into the MessageBody',
        )


def _iter_texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for part in value.values():
                yield from _iter_texts(part)
        case list():
            for part in value:
                yield from _iter_texts(part)


WAITING_STATE = (_check_heartbeat, _check_timeout, _check_token)


# -- reading the definition


def _read_definition(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        remedy = "give the ARN, or a file with the definition"
        raise CheckFailed(f"{path} cannot be read: {error.strerror}", remedy) from error
    except (ValueError, RecursionError):
        raise CheckFailed(f"{path} is not JSON", "give a file with the definition") from None


def _describe(arn: str) -> Any:
    from holdfast.aws.clients import make_fail_fast_client

    client = make_fail_fast_client("stepfunctions", _LEASE_SECONDS)
    with explain_aws_errors(
        "it cannot be described",
        denied="allow the role states:DescribeStateMachine",
        otherwise="check the ARN, the region and the credentials",
    ):
        response = client.describe_state_machine(stateMachineArn=arn)
    try:
        return json.loads(response["definition"])
    except (ValueError, KeyError):
        remedy = "inspect it in the AWS console"
        raise CheckFailed("its definition is not JSON", remedy) from None
