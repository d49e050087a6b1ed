"""What doctor says of state machines: R004-209, R004-217…219, R004-257, JB-18, JB-20, D-22."""

import json
import re
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from holdfast.adapters.aws.stepfunctions_doctor import examine, findings
from holdfast.config.settings import heartbeat_settings
from holdfast.core.checks import CheckResult
from holdfast.core.errors import ConfigError
from holdfast.core.events import Event, Events
from holdfast.jobs.events import IntervalTight
from holdfast.jobs.heartbeats.orchestrator import HeartbeatOrchestrator
from holdfast.testing.memory_jobs import MemoryJobs
from holdfast.testing.stepfunctions import SimulatedStepFunctions

EXAMPLE = Path(__file__).parents[2] / "examples/export/state-machine.json"
INTERVAL = 30.0


def waiting(**fields: Any) -> dict[str, Any]:
    """A state that waits; a field that is None is left out."""
    state = {
        "Type": "Task",
        "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
        "Parameters": {"MessageBody": {"taskToken.$": "$$.Task.Token"}},
        "HeartbeatSeconds": 90,
        "TimeoutSeconds": 7200,
        "End": True,
        **fields,
    }
    return {name: value for name, value in state.items() if value is not None}


def machine(*states: Any) -> dict[str, Any]:
    return {"StartAt": "s0", "States": {f"s{n}": state for n, state in enumerate(states)}}


def found(definition: Any) -> dict[str, str]:
    return {one.check: one.level.value for one in findings(definition, INTERVAL)}


def finding(check: str, **fields: Any) -> CheckResult:
    [one] = [f for f in findings(machine(waiting(**fields)), INTERVAL) if f.check == check]
    return one


@pytest.mark.parametrize(
    ("seconds", "level"), [(90, "ok"), (89, "warn"), (60, "warn"), (59, "fail"), (31, "fail")]
)
def test_heartbeat_seconds_leaves_room_for_two_missed_beats(seconds: int, level: str) -> None:
    one = finding("heartbeat", HeartbeatSeconds=seconds)
    assert one.level.value == level
    assert (level == "ok") or "90 or more" in one.remedy


@pytest.mark.parametrize("seconds", [1, 29, 30, 31, 59, 59.99, 60, 61, 89, 90, 91, 7200])
def test_doctor_settings_and_service_judge_heartbeat_seconds_alike(seconds: float) -> None:
    """One rule: refused below twice the interval, a warning below three times."""
    refused, warned = seconds < 60, 60 <= seconds < 90
    one = finding("heartbeat", HeartbeatSeconds=seconds)
    assert (one.level.value == "fail", one.level.value == "warn") == (refused, warned)
    env = {"STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS": str(seconds)}
    told: list[Event] = []
    if refused:
        with pytest.raises(ConfigError, match=re.escape(one.remedy)):
            heartbeat_settings(env)
        with pytest.raises(ConfigError, match=re.escape(one.remedy)):
            orchestrator(seconds, told)
        return
    checked = heartbeat_settings(env).finding()
    assert checked is not None
    assert (checked.level, checked.remedy) == (one.level, one.remedy)
    started = orchestrator(seconds, told)
    started.start()
    started.stop()
    assert any(isinstance(event, IntervalTight) for event in told) is warned


def orchestrator(heartbeat_seconds: float, told: list[Event]) -> HeartbeatOrchestrator:
    return HeartbeatOrchestrator(
        MemoryJobs(),
        SimulatedStepFunctions(),
        token_closed=lambda job, code: None,
        interval_seconds=INTERVAL,
        heartbeat_timeout_seconds=heartbeat_seconds,
        events=Events(told.append),
    )


@pytest.mark.parametrize("seconds", [59, 60, 89])
def test_the_interval_that_doctor_proposes_is_one_it_accepts(seconds: int) -> None:
    remedy = finding("heartbeat", HeartbeatSeconds=seconds).remedy
    [proposed] = re.findall(r"INTERVAL_MS to (\d+) or less", remedy)
    [again] = [
        one
        for one in findings(machine(waiting(HeartbeatSeconds=seconds)), int(proposed) / 1000)
        if one.check == "heartbeat"
    ]
    assert again.level.value == "ok"


def test_without_a_valid_interval_heartbeat_seconds_is_not_judged() -> None:
    judged = {one.check for one in findings(machine(waiting()), None)}
    assert judged == {"timeout", "retry"}


def test_without_heartbeat_seconds_nobody_notices_a_death() -> None:
    one = finding("heartbeat", HeartbeatSeconds=None)
    assert one.level.value == "fail"
    assert "no HeartbeatSeconds" in one.found


@pytest.mark.parametrize(
    "fields",
    [
        {"HeartbeatSeconds": None, "HeartbeatSecondsPath": "$.beat"},
        {"HeartbeatSeconds": "{% $beat %}"},
    ],
    ids=["path", "jsonata"],
)
def test_what_comes_from_the_input_cannot_be_checked(fields: dict[str, Any]) -> None:
    one = finding("heartbeat", **fields)
    assert one.level.value == "warn"
    assert "cannot be checked" in one.found


def test_a_timeout_is_needed_and_heartbeats_do_not_prolong_it() -> None:
    one = finding("timeout", TimeoutSeconds=None)
    assert one.level.value == "warn"
    assert "99999999" in one.found
    assert "do not prolong it" in one.remedy
    assert finding("timeout").level.value == "ok"
    from_input = {"TimeoutSeconds": None, "TimeoutSecondsPath": "$.t"}
    assert finding("timeout", **from_input).level.value == "ok"
    assert finding("timeout", TimeoutSeconds=90).level.value == "fail"


def test_a_state_that_keeps_its_token_to_itself_is_a_failure() -> None:
    assert finding("token", Parameters={"MessageBody": {"jobId": "a"}}).level.value == "fail"
    jsonata = {"MessageBody": {"taskToken": "{% $states.context.Task.Token %}"}}
    assert "token" not in found(machine(waiting(Parameters=None, Arguments=jsonata)))
    in_a_list = {"Entries": [{"token.$": "$$.Task.Token"}]}
    assert "token" not in found(machine(waiting(Parameters=in_a_list)))


def test_whether_it_tries_again_is_noted() -> None:
    assert "does not try again" in finding("retry").found
    rule = {"ErrorEquals": ["States.Timeout"], "MaxAttempts": 2}
    noted = finding("retry", Retry=[{"ErrorEquals": ["Superseded"]}, rule])
    assert "again on States.Timeout, up to 2 times" in noted.found


def test_states_are_found_however_deep() -> None:
    bad = waiting(HeartbeatSeconds=30)
    deep = machine(
        {
            "Type": "Parallel",
            "Branches": [
                machine({"Type": "Map", "ItemProcessor": machine({"Type": "Wait"}, bad)}),
                machine({"Type": "Map", "Iterator": machine(bad)}),
            ],
        }
    )
    failed = [one for one in findings(deep, INTERVAL) if one.level.value == "fail"]
    assert [one.found.partition(":")[0] for one in failed] == ["s1", "s0"]


@pytest.mark.parametrize(
    "definition",
    [
        machine({"Type": "Pass"}),
        machine({"Type": "Task", "Resource": "arn:aws:states:::sqs:sendMessage"}),
        machine("no state", None, {"Type": "Parallel", "Branches": "none"}),
        {},
        [],
        None,
    ],
    ids=range(6),
)
def test_a_machine_that_does_not_wait_is_told(definition: Any) -> None:
    assert found(definition) == {"state machine": "warn"}


def test_the_example_is_right() -> None:
    """R004-208, R004-211."""
    levels = {one.level.value for one in examine(str(EXAMPLE), INTERVAL)}
    assert levels == {"ok"}


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for name, why in (("bad.json", "is not JSON"), ("nosuch.json", "cannot be read")):
        [one] = examine(str(tmp_path / name), INTERVAL)
        assert one.level.value == "fail"
        assert why in one.found


def test_a_machine_is_looked_up_by_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        client = boto3.client("stepfunctions")
        arn = client.create_state_machine(
            name="export",
            definition=json.dumps(machine(waiting(HeartbeatSeconds=59))),
            roleArn="arn:aws:iam::123456789012:role/export",
        )["stateMachineArn"]
        found = {one.check: one.level.value for one in examine(arn, INTERVAL)}
        assert found == {"heartbeat": "fail", "timeout": "ok", "retry": "ok"}
        [one] = examine(f"{arn}-not", INTERVAL)
    assert one.level.value == "fail"
    assert "StateMachineDoesNotExist" in one.found
