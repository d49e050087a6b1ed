"""doctor on SQS: every weakness of a queue's settings is found, with the way out."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from holdfast.adapters.aws.sqs import checks
from holdfast.adapters.aws.sqs.doctor import SQSDoctor
from holdfast.bootstrap import examine
from holdfast.core.checks import CheckLevel, CheckResult
from holdfast.core.errors import ConfigError
from holdfast.testing import SimulatedSqs

DAY = 86_400
ARN = "arn:aws:lambda:us-east-1:123456789012:function:enrich"


@pytest.fixture
def sqs() -> SimulatedSqs:
    return SimulatedSqs()


def made(sqs: SimulatedSqs, name: str = "q", **attributes: str) -> str:
    """Its ARN."""
    client = sqs.client()
    url = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(answer["Attributes"]["QueueArn"])


def policy(arn: str, receives: int) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})


def well_made(sqs: SimulatedSqs) -> None:
    dead = made(sqs, "q-dlq", MessageRetentionPeriod=str(14 * DAY))
    made(sqs, "q", RedrivePolicy=policy(dead, 6), VisibilityTimeout="60")


@contextmanager
def lambdas(*answers: tuple[str, Any]) -> Iterator[Any]:
    """A Lambda client with these answers, in this order: a code, or what it says."""
    client = boto3.client(
        "lambda", "us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    with Stubber(client) as stub:
        for operation, answer in answers:
            if isinstance(answer, str):
                stub.add_client_error(operation, answer)
            else:
                stub.add_response(operation, answer)
        yield client
        stub.assert_no_pending_responses()


def look(sqs: SimulatedSqs, name: str = "q", **given: Any) -> list[CheckResult]:
    given.setdefault("lambda_client", None)
    if given["lambda_client"] is not None:
        return list(SQSDoctor(name, client=sqs.client(), **given).examine())
    no_functions = ("list_event_source_mappings", {"EventSourceMappings": []})
    with lambdas(no_functions) as given["lambda_client"]:
        return list(SQSDoctor(name, client=sqs.client(), **given).examine())


def about(findings: Iterable[CheckResult], check: str) -> list[CheckResult]:
    return [finding for finding in findings if finding.check == check]


def one(findings: Iterable[CheckResult]) -> CheckResult:
    [finding] = findings
    return finding


# -- the whole


def test_a_queue_that_is_set_up_well_has_nothing_to_mend(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    findings = look(sqs)
    assert {finding.level for finding in findings} == {CheckLevel.OK}
    assert {finding.check for finding in findings} == {
        "queue", "permissions", "visibility", "redrive policy", "dead letters", "retention",
        "in flight", "lambda",
    }  # fmt: skip


def test_every_complaint_has_a_way_out(sqs: SimulatedSqs) -> None:
    made(sqs, VisibilityTimeout="10", MessageRetentionPeriod="60", DelaySeconds="5")
    findings = look(sqs, lease_seconds=2)
    complaints = [finding for finding in findings if finding.level is not CheckLevel.OK]
    assert len(complaints) >= 4
    assert all(finding.remedy for finding in complaints)


def test_it_changes_nothing_and_receives_nothing(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    client = sqs.client()
    url = client.get_queue_url(QueueName="q")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="{}")
    sqs.calls.clear()
    look(sqs)
    asked = {call.operation for call in sqs.calls}
    assert asked <= {
        "GetQueueUrl", "GetQueueAttributes", "ChangeMessageVisibility", "DeleteMessage",
        "SendMessageBatch",
    }  # fmt: skip
    assert sqs.calls.entries("SendMessageBatch") == 0
    [message] = client.receive_message(
        QueueUrl=url, AttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


# -- there, and ours to use


def test_a_queue_that_is_not_there_is_the_only_finding(sqs: SimulatedSqs) -> None:
    finding = one(SQSDoctor("q", client=sqs.client()).examine())
    assert (finding.check, finding.level) == ("queue", CheckLevel.FAIL)
    assert "no such queue" in finding.found


def test_a_queue_nobody_lets_us_look_at_is_the_only_finding(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    sqs.faults.fail("GetQueueAttributes", "AccessDenied", times=inf)
    finding = one(SQSDoctor("q", client=sqs.client()).examine())
    assert (finding.check, finding.level) == ("queue", CheckLevel.FAIL)
    assert "sqs:GetQueueAttributes" in finding.found


def test_a_network_that_is_down_is_a_finding_too(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    error = EndpointConnectionError(endpoint_url="http://sqs")
    sqs.faults.fail("GetQueueUrl", error=error, times=inf)
    finding = one(SQSDoctor("q", client=sqs.client()).examine())
    assert finding.level is CheckLevel.FAIL
    assert "region" in finding.remedy


@pytest.mark.parametrize(
    ("operation", "right"),
    [
        ("ChangeMessageVisibility", "sqs:ChangeMessageVisibility"),
        ("DeleteMessage", "sqs:DeleteMessage"),
        ("SendMessageBatch", "sqs:SendMessage"),
    ],
)
def test_a_right_that_is_missing_is_named(
    sqs: SimulatedSqs, operation: str, right: str
) -> None:
    well_made(sqs)
    sqs.faults.fail(operation, "AccessDenied", times=inf)
    finding = one(about(look(sqs), "permissions"))
    assert finding.level is CheckLevel.FAIL
    assert finding.found == f"this user may not: {right}"


def test_rights_that_could_not_be_tried_are_not_called_given(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    sqs.faults.fail("DeleteMessage", "ServiceUnavailable", times=inf)
    findings = look(sqs)
    finding = one(about(findings, "permissions"))
    assert finding.level is CheckLevel.FAIL
    assert "cannot be checked" in finding.found
    assert about(findings, "redrive policy")  # the other checks are made all the same


def test_a_key_of_ones_own_needs_rights_of_its_own() -> None:
    findings = list(checks.queue_check("q", {"KmsMasterKeyId": "alias/work"}))
    assert "kms:Decrypt" in one(about(findings, "encryption")).found


# -- visibility and lease


@pytest.mark.parametrize(
    ("visibility", "lease", "level"),
    [("60", 60.0, CheckLevel.OK), ("600", 60.0, CheckLevel.OK), ("30", 60.0, CheckLevel.WARN)],
)
def test_the_queues_visibility_is_compared_with_the_lease(
    visibility: str, lease: float, level: CheckLevel
) -> None:
    finding = one(checks.lease_check({"VisibilityTimeout": visibility}, lease))
    assert (finding.check, finding.level) == ("visibility", level)


def test_a_lease_too_short_for_long_polls_is_pointed_out() -> None:
    found = {"VisibilityTimeout": "60"}
    assert one(about(checks.lease_check(found, 2.9), "lease")).level is CheckLevel.WARN
    assert about(checks.lease_check(found, 3.0), "lease") == []


# -- redrive policy and dead letters


@pytest.mark.parametrize(
    ("receives", "level", "word"),
    [
        (None, CheckLevel.FAIL, "none"),
        (1, CheckLevel.FAIL, "nobody has seen"),
        (4, CheckLevel.WARN, "no reason is kept"),
        (5, CheckLevel.OK, "after 5 receives"),
        (6, CheckLevel.OK, "after 6 receives"),
    ],
)
def test_the_redrive_policy_must_leave_room_for_the_attempts(
    receives: int | None, level: CheckLevel, word: str
) -> None:
    found = {} if receives is None else {"RedrivePolicy": policy("arn:x:y", receives)}
    finding = one(checks.redrive_check(found, max_attempts=5))
    assert finding.level is level
    assert word in finding.found


def test_a_dead_letter_queue_that_was_deleted_is_a_failure(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    client = sqs.client()
    client.delete_queue(QueueUrl=client.get_queue_url(QueueName="q-dlq")["QueueUrl"])
    finding = one(about(look(sqs), "dead letters"))
    assert finding.level is CheckLevel.FAIL
    assert "not there" in finding.found


def test_a_dead_letter_queue_nobody_lets_us_see_is_a_warning(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    # The first is for the queue itself.
    sqs.faults.fail("GetQueueUrl", "AccessDenied", times=inf, after=1)
    finding = one(about(look(sqs), "dead letters"))
    assert finding.level is CheckLevel.WARN
    assert "GetQueueUrl" in finding.remedy


def test_dead_letters_that_wait_are_pointed_out(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    client = sqs.client()
    url = client.get_queue_url(QueueName="q-dlq")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="{}")
    finding = one(about(look(sqs), "dead letters"))
    assert finding.level is CheckLevel.WARN
    assert "redrive" in finding.remedy


def test_the_queue_asked_for_is_the_one_looked_at(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    made(sqs, "graves", MessageRetentionPeriod=str(14 * DAY))
    finding = one(about(look(sqs, dead_letters="graves"), "dead letters"))
    assert "graves" in finding.found


def test_dead_letters_of_another_kind_of_queue_are_a_failure() -> None:
    fourteen = {"MessageRetentionPeriod": str(14 * DAY)}
    fifo = {**fourteen, "FifoQueue": "true"}
    for dead, source in ((fourteen, fifo), (fifo, {})):
        levels = [one.level for one in checks.dead_letters_check("dead", dead, source)]
        assert CheckLevel.FAIL in levels


@pytest.mark.parametrize(
    ("kept", "before", "fifo", "level"),
    [
        (14, 4, False, None),
        (4, 4, False, CheckLevel.WARN),
        (1, 4, False, CheckLevel.FAIL),
        (1, 4, True, None),  # they begin a new life there
    ],
)
def test_dead_letters_must_be_kept_longer_than_they_were_waiting(
    kept: int, before: int, fifo: bool, level: CheckLevel | None
) -> None:
    kind = {"FifoQueue": "true"} if fifo else {}
    dead = {**kind, "MessageRetentionPeriod": str(kept * DAY)}
    source = {**kind, "MessageRetentionPeriod": str(before * DAY)}
    findings = list(checks.dead_letters_check("dead", dead, source))
    complaints = [finding.level for finding in findings if finding.level is not CheckLevel.OK]
    assert complaints == ([] if level is None else [level])


@pytest.mark.parametrize(
    ("takes", "source", "level"),
    [
        (262_144, 1_048_576, CheckLevel.FAIL),
        (262_144, 262_144, None),
        (1_048_576, 262_144, None),
    ],
)
def test_the_dead_letter_queue_must_take_what_its_source_takes(
    sqs: SimulatedSqs, takes: int, source: int, level: CheckLevel | None
) -> None:
    keep = {"MessageRetentionPeriod": str(14 * DAY)}
    dead = made(sqs, "q-dlq", MaximumMessageSize=str(takes), **keep)
    made(sqs, MaximumMessageSize=str(source), RedrivePolicy=policy(dead, 6))
    found = about(look(sqs), "dead letters")
    complaints = [finding for finding in found if finding.level is not CheckLevel.OK]
    assert [finding.level for finding in complaints] == ([] if level is None else [level])
    for finding in complaints:
        assert "262,144" in finding.found
        assert "1,048,576" in finding.found
        assert "MaximumMessageSize to 1048576" in finding.remedy


# -- the rest of the settings


@pytest.mark.parametrize(
    ("seconds", "level"),
    [
        (4 * DAY, CheckLevel.OK),
        (DAY, CheckLevel.OK),
        (3600, CheckLevel.WARN),
        (60, CheckLevel.FAIL),
    ],
)
def test_work_must_not_be_forgotten_while_it_waits(seconds: int, level: CheckLevel) -> None:
    found = {"MessageRetentionPeriod": str(seconds)}
    assert one(checks.retention_check(found, lease_seconds=60)).level is level


def test_a_delay_for_everything_is_pointed_out() -> None:
    assert list(checks.delay_check({"DelaySeconds": "0"})) == []
    assert one(checks.delay_check({"DelaySeconds": "30"})).level is CheckLevel.WARN


@pytest.mark.parametrize(
    ("held", "level"),
    [
        (0, CheckLevel.OK),
        (89_999, CheckLevel.OK),
        (90_000, CheckLevel.WARN),
        (120_000, CheckLevel.FAIL),
    ],
)
def test_the_limit_of_what_may_be_held_is_seen_coming(held: int, level: CheckLevel) -> None:
    found = {"ApproximateNumberOfMessagesNotVisible": str(held)}
    assert one(checks.in_flight_check(found)).level is level


# -- Lambda functions that the queue feeds


def mapping(**more: Any) -> dict[str, Any]:
    return {
        "FunctionArn": ARN,
        "State": "Enabled",
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        **more,
    }


def functions(sqs: SimulatedSqs, mapped: dict[str, Any], timeout: Any) -> list[CheckResult]:
    answer = timeout if isinstance(timeout, str) else {"Timeout": timeout}
    with lambdas(
        ("list_event_source_mappings", {"EventSourceMappings": [mapped]}),
        ("get_function_configuration", answer),
    ) as client:
        return about(look(sqs, lambda_client=client), "lambda enrich")


@pytest.mark.parametrize(
    ("timeout", "window", "level"),
    [
        (10, 0, CheckLevel.OK),
        (10, 1, CheckLevel.WARN),  # the window counts too
        (11, 0, CheckLevel.WARN),
        (60, 0, CheckLevel.WARN),
        (61, 0, CheckLevel.FAIL),
    ],
)
def test_the_queue_must_hide_messages_longer_than_the_function_may_run(
    sqs: SimulatedSqs, timeout: int, window: int, level: CheckLevel
) -> None:
    """R000-073: never below the timeout; six times of it is what Amazon recommends."""
    well_made(sqs)  # it hides them for 60 s
    found = functions(sqs, mapping(MaximumBatchingWindowInSeconds=window), timeout)
    assert [finding.level for finding in found] == [level, CheckLevel.OK]
    if level is not CheckLevel.OK:
        assert str(6 * timeout + window) in found[0].remedy


def test_a_function_whose_failures_are_not_heard_is_a_failure(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    found = functions(sqs, mapping(FunctionResponseTypes=[]), 10)
    assert found[-1].level is CheckLevel.FAIL
    assert "ReportBatchItemFailures" in found[-1].remedy


def test_a_mapping_that_is_off_is_pointed_out(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    found = functions(sqs, mapping(State="Disabled"), 10)
    assert found[0].level is CheckLevel.WARN
    assert "is off" in found[0].found


def test_a_function_we_may_not_see_is_no_complaint(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    found = functions(sqs, mapping(), "AccessDeniedException")
    assert {finding.level for finding in found} == {CheckLevel.OK}
    assert "cannot be seen" in found[0].found


def test_without_the_right_to_ask_lambda_that_is_said_and_no_more(sqs: SimulatedSqs) -> None:
    well_made(sqs)
    with lambdas(("list_event_source_mappings", "AccessDeniedException")) as client:
        finding = one(about(look(sqs, lambda_client=client), "lambda"))
    assert finding.level is CheckLevel.OK
    assert "AccessDeniedException" in finding.found


# -- by URL


def test_doctor_is_found_by_an_sqs_url_and_takes_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"\?lease_seconds="):
        examine("sqs:q?lease_seconds=nonsense", env={})
    with pytest.raises(ConfigError, match="cannot be used"):
        examine("sqs:not a name", env={})
    with pytest.raises(ConfigError, match="cannot be used"):
        examine("https://sqs.us-east-1.amazonaws.com/1234/a%20b", env={})
