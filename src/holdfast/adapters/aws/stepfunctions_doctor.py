"""Check a state machine that waits for Holdfast's callbacks, for `doctor`.

This checks every state whose resource ends with .waitForTaskToken, also inside Parallel and
Map states. A definition may contain anything, so unexpected parts of it are skipped.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import DENIED, get_error_code
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.jobs.heartbeats.interval import check_interval

_WAIT_SUFFIX = ".waitForTaskToken"
_TOKENS = ("$$.Task.Token", "$states.context.Task.Token")
_TIMEOUTS = ("States.Timeout", "States.HeartbeatTimeout", "States.TaskFailed", "States.ALL")
_LEASE_SECONDS = 40.0  # a lease of this length gives each call five seconds


def examine(
    source: str, interval_seconds: float | None, client: Any = None
) -> Iterator[CheckResult]:
    """Check the state machine with that ARN, or in that file.

    If `interval_seconds` is None, HeartbeatSeconds is not checked.
    """
    is_arn = source.startswith("arn:")
    try:
        definition = _describe(source, client) if is_arn else _read_definition(source)
    except _UnreadableDefinition as problem:
        yield fail("state machine", str(problem), problem.remedy)
        return
    yield from check_definition(definition, interval_seconds)


def check_definition(definition: Any, interval_seconds: float | None) -> Iterator[CheckResult]:
    """Check a definition in the Amazon States Language."""
    waiting = [(name, state) for name, state in iter_states(definition) if _is_waiting(state)]
    if not waiting:
        yield warn(
            "state machine",
            "none of its states waits for a task token",
            f"give the state that starts the job a resource that ends with {_WAIT_SUFFIX}",
        )
    for name, state in waiting:
        if interval_seconds is not None:
            yield from _check_heartbeat(name, state, interval_seconds)
        yield from _check_timeout(name, state)
        yield from _check_token(name, state)
        yield _check_retry(name, state)


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


def _is_waiting(state: Mapping[str, Any]) -> bool:
    return state.get("Type") == "Task" and str(state.get("Resource", "")).endswith(_WAIT_SUFFIX)


# -- one state


def _check_heartbeat(
    name: str, state: Mapping[str, Any], interval: float
) -> Iterator[CheckResult]:
    seconds = state.get("HeartbeatSeconds")
    if seconds is None and "HeartbeatSecondsPath" not in state:
        yield fail(
            "heartbeat",
            f"{name} declares no HeartbeatSeconds: if the service dies, this is noticed only "
            "after TimeoutSeconds",
            f"set HeartbeatSeconds to {3 * interval:g} or more, three times the interval",
        )
    elif (number := _to_number(seconds)) is None:
        yield warn(
            "heartbeat",
            f"{name} takes HeartbeatSeconds from its input, so it cannot be checked here",
            f"make sure that it is {3 * interval:g} or more, three times the interval",
        )
    else:
        finding = check_interval(interval, number)
        yield replace(finding, found=f"{name}: {finding.found}")


def _check_timeout(name: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    heartbeat, timeout = _to_number(state.get("HeartbeatSeconds")), state.get("TimeoutSeconds")
    if timeout is None and "TimeoutSecondsPath" not in state:
        yield warn(
            "timeout",
            f"{name} declares no TimeoutSeconds, so it is 99999999 s, which is three years",
            "set it to the longest time a job may take, with a margin; heartbeats do not "
            "prolong it",
        )
    elif (seconds := _to_number(timeout)) is None:
        yield ok("timeout", f"{name} takes TimeoutSeconds from its input")
    elif heartbeat is not None and seconds <= heartbeat:
        yield fail(
            "timeout",
            f"{name}: TimeoutSeconds {seconds:g} is not above HeartbeatSeconds {heartbeat:g}",
            "set it to the longest time a job may take, with a margin",
        )
    else:
        yield ok(
            "timeout", f"{name}: a job has {seconds:g} s in all; heartbeats do not prolong it"
        )


def _check_token(name: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    arguments = [state.get("Parameters"), state.get("Arguments")]
    if not any(token in text for text in _iter_texts(arguments) for token in _TOKENS):
        yield fail(
            "token",
            f"{name} does not send its task token: no worker can call back, and the state "
            "waits until its timeout",
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


def _check_retry(name: str, state: Mapping[str, Any]) -> CheckResult:
    retries = state.get("Retry")
    rules = [rule for rule in retries if isinstance(rule, Mapping)] if retries else []
    for rule in rules:
        for error in rule.get("ErrorEquals") or ():
            if error in _TIMEOUTS:
                times = rule.get("MaxAttempts", 3)
                return ok(
                    "retry",
                    f"{name} tries again on {error}, up to {times} times: the job continues "
                    "where it was, with the new token",
                )
    return ok("retry", f"{name} does not try again after a timeout: the execution fails")


def _to_number(value: Any) -> float | None:
    """Return the number, or None if the state takes it from its input."""
    return float(value) if isinstance(value, int | float) and value is not True else None


# -- reading the definition


class _UnreadableDefinition(Exception):
    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


def _read_definition(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        remedy = "give the ARN, or a file with the definition"
        raise _UnreadableDefinition(text, remedy) from None
    except (ValueError, RecursionError):
        remedy = "give a file with the definition"
        raise _UnreadableDefinition(f"{path} is not JSON", remedy) from None


def _describe(arn: str, client: Any) -> Any:
    if client is None:
        client = clients.make_fail_fast_client("stepfunctions", _LEASE_SECONDS)

    from botocore.exceptions import BotoCoreError, ClientError

    try:
        response = client.describe_state_machine(stateMachineArn=arn)
        return json.loads(response["definition"])
    except (BotoCoreError, ClientError) as error:
        code = get_error_code(error) or type(error).__name__
        remedy = "check the ARN, the region and the credentials"
        if code in DENIED:
            remedy = "allow the role states:DescribeStateMachine"
        raise _UnreadableDefinition(f"it cannot be described ({code})", remedy) from None
    except (ValueError, KeyError):
        remedy = "inspect it in the AWS console"
        raise _UnreadableDefinition("its definition is not JSON", remedy) from None
