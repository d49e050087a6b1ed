"""The doctor's checks of state machines.

(JB-18, JB-20).
"""

import json
import re
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from holdfast.doctor.checks import CheckResult, run_checks
from holdfast.errors import ConfigError
from holdfast.events import Event, Events
from holdfast.exports.checks import check_definition, examine_machine
from holdfast.exports.events import IntervalTight
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from holdfast.exports.settings import HeartbeatSettings
from holdfast.exports.simulated_step_functions import SimulatedStepFunctions
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.settings import read_settings
from support.paths import ROOT

EXAMPLE = ROOT / "examples/export/state-machine.json"
INTERVAL = 30.0


def make_waiting_state(**fields: Any) -> dict[str, Any]:
    """Make a state that waits for its token; a field that is None is left out."""
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


def make_machine(*states: Any) -> dict[str, Any]:
    """Make a state machine of these states."""
    return {"StartAt": "s0", "States": {f"s{n}": state for n, state in enumerate(states)}}


def list_levels(definition: Any) -> dict[str, str]:
    """Return the level of each check."""
    return {
        result.check: result.level.value
        for result in run_checks(
            definition, ("state machine", lambda machine: check_definition(machine, INTERVAL))
        )
    }


def check_state(check: str, **fields: Any) -> CheckResult:
    """Return result result of the checks of a machine with result state."""
    [result] = [
        f
        for f in check_definition(make_machine(make_waiting_state(**fields)), INTERVAL)
        if f.check == check
    ]
    return result


@pytest.mark.requirement("R004-209", "R004-217")
@pytest.mark.parametrize("seconds", [1, 59, 59.99, 60, 89, 89.9, 90, 7200])
def test_doctor_settings_and_service_judge_heartbeat_seconds_alike(seconds: float) -> None:
    """All refuse less than twice the interval, and warn below three times."""
    refused, warned = seconds < 60, 60 <= seconds < 90
    result = check_state("heartbeat", HeartbeatSeconds=seconds)
    assert (result.level.value == "fail", result.level.value == "warn") == (refused, warned)
    assert ("90 or more" in result.remedy) is (refused or warned)
    env = {"STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS": str(seconds)}
    emitted: list[Event] = []
    if refused:
        with pytest.raises(ConfigError, match=re.escape(result.remedy)):
            read_settings(HeartbeatSettings, env)
        with pytest.raises(ConfigError, match=re.escape(result.remedy)):
            make_orchestrator(seconds, emitted)
        return
    checked = read_settings(HeartbeatSettings, env).check_timeout()
    assert checked is not None
    assert (checked.level, checked.remedy) == (result.level, result.remedy)
    started = make_orchestrator(seconds, emitted)
    started.start()
    started.stop()
    assert any(isinstance(event, IntervalTight) for event in emitted) is warned


def make_orchestrator(heartbeat_seconds: float, emitted: list[Event]) -> HeartbeatOrchestrator:
    """Make an orchestrator with that timeout."""
    return HeartbeatOrchestrator(
        MemoryJobs(),
        SimulatedStepFunctions(),
        token_closed=lambda job, code: None,
        interval_seconds=INTERVAL,
        heartbeat_timeout_seconds=heartbeat_seconds,
        events=Events(emitted.append),
    )


@pytest.mark.parametrize("seconds", [59, 60, 89])
def test_the_interval_that_doctor_proposes_is_one_it_accepts(seconds: int) -> None:
    remedy = check_state("heartbeat", HeartbeatSeconds=seconds).remedy
    [proposed] = re.findall(r"INTERVAL_MS to (\d+) or less", remedy)
    [again] = [
        result
        for result in check_definition(
            make_machine(make_waiting_state(HeartbeatSeconds=seconds)), int(proposed) / 1000
        )
        if result.check == "heartbeat"
    ]
    assert again.level.value == "ok"


def test_without_a_valid_interval_heartbeat_seconds_is_not_judged() -> None:
    judged = {
        result.check for result in check_definition(make_machine(make_waiting_state()), None)
    }
    assert judged == {"timeout"}


@pytest.mark.parametrize(
    ("fields", "level", "words"),
    [
        ({"HeartbeatSeconds": None}, "fail", "no HeartbeatSeconds"),
        (
            {"HeartbeatSeconds": None, "HeartbeatSecondsPath": "$.beat"},
            "warn",
            "cannot be checked",
        ),
        ({"HeartbeatSeconds": "{% $beat %}"}, "warn", "cannot be checked"),
    ],
    ids=["missing", "path", "jsonata"],
)
def test_heartbeat_seconds_that_are_missing_or_come_from_the_input(
    fields: dict[str, Any], level: str, words: str
) -> None:
    result = check_state("heartbeat", **fields)
    assert (result.level.value, words in result.found) == (level, True)


@pytest.mark.requirement("R004-219")
def test_a_timeout_is_needed_and_heartbeats_do_not_prolong_it() -> None:
    result = check_state("timeout", TimeoutSeconds=None)
    assert result.level.value == "warn"
    assert "99999999" in result.found
    assert "do not prolong it" in result.remedy
    assert check_state("timeout").level.value == "ok"
    from_input = {"TimeoutSeconds": None, "TimeoutSecondsPath": "$.t"}
    assert check_state("timeout", **from_input).level.value == "ok"
    assert check_state("timeout", TimeoutSeconds=90).level.value == "fail"


def test_a_state_that_does_not_send_its_token_fails_the_check() -> None:
    assert (
        check_state("token", Parameters={"MessageBody": {"jobId": "a"}}).level.value == "fail"
    )
    jsonata = {"MessageBody": {"taskToken": "{% $states.context.Task.Token %}"}}
    assert "token" not in list_levels(
        make_machine(make_waiting_state(Parameters=None, Arguments=jsonata))
    )
    in_a_list = {"Entries": [{"token.$": "$$.Task.Token"}]}
    assert "token" not in list_levels(make_machine(make_waiting_state(Parameters=in_a_list)))


def test_states_are_found_however_deep() -> None:
    bad = make_waiting_state(HeartbeatSeconds=30)
    deep = make_machine(
        {
            "Type": "Parallel",
            "Branches": [
                make_machine(
                    {"Type": "Map", "ItemProcessor": make_machine({"Type": "Wait"}, bad)}
                ),
                make_machine({"Type": "Map", "Iterator": make_machine(bad)}),
            ],
        }
    )
    failed = [
        result for result in check_definition(deep, INTERVAL) if result.level.value == "fail"
    ]
    assert [result.found.partition(":")[0] for result in failed] == ["s1", "s0"]


@pytest.mark.parametrize(
    "definition",
    [
        make_machine({"Type": "Pass"}),
        make_machine({"Type": "Task", "Resource": "arn:aws:states:::sqs:sendMessage"}),
        make_machine("no state", None, {"Type": "Parallel", "Branches": "none"}),
        {},
        [],
        None,
    ],
    ids=range(6),
)
def test_a_machine_without_a_waiting_state_gets_a_warning(definition: Any) -> None:
    assert list_levels(definition) == {"state machine": "warn"}


@pytest.mark.requirement("R004-208", "R004-211")
def test_the_example_is_right() -> None:
    levels = {result.level.value for result in examine_machine(str(EXAMPLE), {})}
    assert levels == {"ok"}


def test_a_definition_that_cannot_be_read_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for name, reason in (("bad.json", "is not JSON"), ("nosuch.json", "cannot be read")):
        [result] = examine_machine(str(tmp_path / name), {})
        assert result.level.value == "fail"
        assert reason in result.found


def test_a_machine_is_looked_up_by_its_arn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        client = boto3.client("stepfunctions")
        arn = client.create_state_machine(
            name="export",
            definition=json.dumps(make_machine(make_waiting_state(HeartbeatSeconds=59))),
            roleArn="arn:aws:iam::123456789012:role/export",
        )["stateMachineArn"]
        levels = {result.check: result.level.value for result in examine_machine(arn, {})}
        assert levels == {"heartbeat": "fail", "timeout": "ok"}
        [result] = examine_machine(f"{arn}-not", {})
    assert result.level.value == "fail"
    assert "StateMachineDoesNotExist" in result.found
