"""What doctor thinks of a state machine that waits for our answers.

Every state whose resource ends with .waitForTaskToken is looked at, inside Parallel and Map
states too. A definition is somebody's text: whatever is not as expected is passed over.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import DENIED, code_of
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.jobs.heartbeats.interval import check_interval

_WAITS = ".waitForTaskToken"
_TOKENS = ("$$.Task.Token", "$states.context.Task.Token")
_TIMEOUTS = ("States.Timeout", "States.HeartbeatTimeout", "States.TaskFailed", "States.ALL")
_PATIENCE_SECONDS = 40.0  # of a lease of this length: five seconds for each call


def examine(
    where: str, interval_seconds: float | None, client: Any = None
) -> Iterator[CheckResult]:
    """The state machine with that ARN, or in that file. Without a valid interval there is
    nothing to compare HeartbeatSeconds with, and it is passed over."""
    try:
        definition = _described(where, client) if _is_arn(where) else _read(where)
    except _Unreadable as problem:
        yield fail("state machine", str(problem), problem.remedy)
        return
    yield from findings(definition, interval_seconds)


def findings(definition: Any, interval_seconds: float | None) -> Iterator[CheckResult]:
    """Of a definition in the Amazon States Language."""
    waiting = [(name, state) for name, state in states(definition) if _waits(state)]
    if not waiting:
        yield warn(
            "state machine",
            "no state of it waits for a task token",
            f"give the state that starts the job a resource that ends with {_WAITS}",
        )
    for name, state in waiting:
        if interval_seconds is not None:
            yield from _heartbeat(name, state, interval_seconds)
        yield from _timeout(name, state)
        yield from _token(name, state)
        yield _retry(name, state)


def states(machine: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All states, however deep."""
    if not isinstance(machine, Mapping) or not isinstance(machine.get("States"), Mapping):
        return
    for name, state in machine["States"].items():
        if not isinstance(state, Mapping):
            continue
        yield str(name), state
        branches = state.get("Branches")
        below = list(branches) if isinstance(branches, list) else []
        for machine_below in [*below, state.get("Iterator"), state.get("ItemProcessor")]:
            yield from states(machine_below)


def _waits(state: Mapping[str, Any]) -> bool:
    return state.get("Type") == "Task" and str(state.get("Resource", "")).endswith(_WAITS)


# -- one state


def _heartbeat(name: str, state: Mapping[str, Any], interval: float) -> Iterator[CheckResult]:
    seconds = state.get("HeartbeatSeconds")
    if seconds is None and "HeartbeatSecondsPath" not in state:
        yield fail(
            "heartbeat",
            f"{name} declares no HeartbeatSeconds: when the service dies, nobody notices "
            "before TimeoutSeconds",
            f"set HeartbeatSeconds to {3 * interval:g} or more, three times the interval",
        )
    elif (number := _number(seconds)) is None:
        yield warn(
            "heartbeat",
            f"{name} takes HeartbeatSeconds from its input, so it cannot be checked here",
            f"see that it is {3 * interval:g} or more, three times the interval",
        )
    else:
        finding = check_interval(interval, number)
        yield replace(finding, found=f"{name}: {finding.found}")


def _timeout(name: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    heartbeat, timeout = _number(state.get("HeartbeatSeconds")), state.get("TimeoutSeconds")
    if timeout is None and "TimeoutSecondsPath" not in state:
        yield warn(
            "timeout",
            f"{name} declares no TimeoutSeconds: it is 99999999 s then, three years",
            "set it to the longest a job may take, with a margin; heartbeats do not prolong it",
        )
    elif (seconds := _number(timeout)) is None:
        yield ok("timeout", f"{name} takes TimeoutSeconds from its input")
    elif heartbeat is not None and seconds <= heartbeat:
        yield fail(
            "timeout",
            f"{name}: TimeoutSeconds {seconds:g} is not above HeartbeatSeconds {heartbeat:g}",
            "set it to the longest a job may take, with a margin",
        )
    else:
        yield ok(
            "timeout", f"{name}: a job has {seconds:g} s in all; heartbeats do not prolong it"
        )


def _token(name: str, state: Mapping[str, Any]) -> Iterator[CheckResult]:
    said = [text for field in ("Parameters", "Arguments") for text in _texts(state.get(field))]
    if not any(token in text for text in said for token in _TOKENS):
        yield fail(
            "token",
            f"{name} does not send its task token: nobody can answer, and it waits until its "
            "timeout",
            'put "taskToken.$": "$$.Task.Token" into the MessageBody',
        )


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for part in value.values():
                yield from _texts(part)
        case list():
            for part in value:
                yield from _texts(part)


def _retry(name: str, state: Mapping[str, Any]) -> CheckResult:
    retries = state.get("Retry")
    rules = [rule for rule in retries if isinstance(rule, Mapping)] if retries else []
    for rule in rules:
        for error in rule.get("ErrorEquals") or ():
            if error in _TIMEOUTS:
                times = rule.get("MaxAttempts", 3)
                return ok(
                    "retry",
                    f"{name} tries again on {error}, up to {times} times: the job goes on "
                    "where it was, for the new token",
                )
    return ok("retry", f"{name} does not try again after a timeout: it fails the execution")


def _number(value: Any) -> float | None:
    """None for what is taken from the input when the state is entered."""
    return float(value) if isinstance(value, int | float) and value is not True else None


# -- where it comes from


class _Unreadable(Exception):
    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


def _is_arn(where: str) -> bool:
    return where.startswith("arn:")


def _read(where: str) -> Any:
    try:
        return json.loads(Path(where).read_bytes())
    except OSError as error:
        text = f"{where} cannot be read: {error.strerror}"
        raise _Unreadable(text, "name the ARN, or a file with its definition") from None
    except (ValueError, RecursionError):
        raise _Unreadable(f"{where} is not JSON", "see that it is the definition") from None


def _described(arn: str, client: Any) -> Any:
    client = clients.prompt("stepfunctions", _PATIENCE_SECONDS) if client is None else client

    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = client.describe_state_machine(stateMachineArn=arn)
        return json.loads(answer["definition"])
    except (BotoCoreError, ClientError) as error:
        code = code_of(error) or type(error).__name__
        remedy = "check the ARN, the region and the credentials"
        if code in DENIED:
            remedy = "the role needs states:DescribeStateMachine"
        raise _Unreadable(f"it cannot be described ({code})", remedy) from None
    except (ValueError, KeyError):
        raise _Unreadable("its definition is not JSON", "look at it in the console") from None
