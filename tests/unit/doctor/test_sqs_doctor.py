"""`doctor` on SQS reports every weakness of a queue's settings, with its remedy."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from holdfast.doctor import sqs_queue
from holdfast.doctor.checks import CheckLevel, CheckResult
from holdfast.doctor.queues import examine_queue
from holdfast.doctor.runner import run_checks
from holdfast.doctor.sqs_queue import QueueConfiguration, SqsQueue, examine_sqs_queue
from holdfast.errors import ConfigError
from holdfast.queues.settings import SqsSettings
from holdfast.testing import SimulatedSqs

DAY = 86_400
ARN = "arn:aws:lambda:us-east-1:123456789012:function:enrich"


@pytest.fixture
def sqs() -> SimulatedSqs:
    return SimulatedSqs()


def create_queue(sqs: SimulatedSqs, name: str = "q", **attributes: str) -> str:
    """Create a queue and return its ARN."""
    client = sqs.client()
    url = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    response = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(response["Attributes"]["QueueArn"])


def policy(arn: str, receives: int) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})


def create_good_queue(sqs: SimulatedSqs) -> None:
    dead = create_queue(sqs, "q-dlq", MessageRetentionPeriod=str(14 * DAY))
    create_queue(sqs, "q", RedrivePolicy=policy(dead, 6), VisibilityTimeout="60")


@contextmanager
def stub_lambda_client(*responses: tuple[str, Any]) -> Iterator[Any]:
    """Make a Lambda client with these responses in this order; a string is an error code."""
    client = boto3.client(
        "lambda", "us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    with Stubber(client) as stub:
        for operation, response in responses:
            if isinstance(response, str):
                stub.add_client_error(operation, response)
            else:
                stub.add_response(operation, response)
        yield client
        stub.assert_no_pending_responses()


def examine_sqs(
    sqs: SimulatedSqs, name: str = "q", lambda_client: Any = None, **settings: Any
) -> list[CheckResult]:
    clients = {"client": sqs.client(), "lambda_client": lambda_client}
    if lambda_client is not None:
        return list(examine_sqs_queue(name, SqsSettings(**settings), **clients))
    no_functions = ("list_event_source_mappings", {"EventSourceMappings": []})
    with stub_lambda_client(no_functions) as clients["lambda_client"]:
        return list(examine_sqs_queue(name, SqsSettings(**settings), **clients))


def check_attributes(
    check: str,
    attributes: dict[str, str],
    **settings: Any,
) -> list[CheckResult]:
    """Return the results of one check that needs only a queue's attributes."""
    unused: Any = None
    attributes_read = QueueConfiguration("q", attributes)
    queue = SqsQueue(unused, attributes_read, unused, SqsSettings(**settings))
    rows = [row for row in sqs_queue.SQS_QUEUE if row[0] == check]
    return list(run_checks(queue, *rows))


def compare_dead_letters(dead: dict[str, str], source: dict[str, str]) -> list[CheckResult]:
    return list(
        sqs_queue.compare_dead_letters(
            QueueConfiguration("dead", dead), QueueConfiguration("q", source)
        )
    )


def select(findings: Iterable[CheckResult], check: str) -> list[CheckResult]:
    return [finding for finding in findings if finding.check == check]


def get_only(findings: Iterable[CheckResult]) -> CheckResult:
    [finding] = findings
    return finding


# -- all checks


def test_a_queue_that_is_set_up_well_has_no_problems(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    findings = examine_sqs(sqs)
    assert {finding.level for finding in findings} == {CheckLevel.OK}
    assert {finding.check for finding in findings} == {
        "queue", "permissions", "visibility", "redrive policy", "dead letters", "retention",
        "in flight", "lambda",
    }  # fmt: skip


def test_every_problem_has_a_remedy(sqs: SimulatedSqs) -> None:
    create_queue(sqs, VisibilityTimeout="10", MessageRetentionPeriod="60", DelaySeconds="5")
    findings = examine_sqs(sqs, lease_seconds=2)
    complaints = [finding for finding in findings if finding.level is not CheckLevel.OK]
    assert len(complaints) >= 4
    assert all(finding.remedy for finding in complaints)


def test_it_changes_nothing_and_receives_nothing(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    client = sqs.client()
    url = client.get_queue_url(QueueName="q")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="{}")
    sqs.calls.clear()
    examine_sqs(sqs)
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


# -- access


def test_a_missing_queue_is_the_only_result(sqs: SimulatedSqs) -> None:
    finding = get_only(examine_sqs_queue("q", SqsSettings(), client=sqs.client()))
    assert (finding.check, finding.level) == ("queue", CheckLevel.FAIL)
    assert "no such queue" in finding.found


def test_a_queue_without_read_permission_is_the_only_result(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    sqs.faults.fail("GetQueueAttributes", "AccessDenied", times=inf)
    finding = get_only(examine_sqs_queue("q", SqsSettings(), client=sqs.client()))
    assert (finding.check, finding.level) == ("queue", CheckLevel.FAIL)
    assert "sqs:GetQueueAttributes" in finding.found


def test_a_network_that_is_down_is_reported(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    error = EndpointConnectionError(endpoint_url="http://sqs")
    sqs.faults.fail("GetQueueUrl", error=error, times=inf)
    finding = get_only(examine_sqs_queue("q", SqsSettings(), client=sqs.client()))
    assert finding.level is CheckLevel.FAIL
    assert "region" in finding.remedy


@pytest.mark.parametrize(
    ("operation", "permission"),
    [
        ("ChangeMessageVisibility", "sqs:ChangeMessageVisibility"),
        ("DeleteMessage", "sqs:DeleteMessage"),
    ],
)
def test_a_missing_permission_is_named(
    sqs: SimulatedSqs, operation: str, permission: str
) -> None:
    create_good_queue(sqs)
    sqs.faults.fail(operation, "AccessDenied", times=inf)
    finding = get_only(select(examine_sqs(sqs), "permissions"))
    assert finding.level is CheckLevel.FAIL
    assert finding.found == f"this user lacks {permission}"


def test_a_worker_that_may_not_send_cannot_put_newer_messages_back(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    sqs.faults.fail("SendMessageBatch", "AccessDenied", times=inf)
    finding = get_only(select(examine_sqs(sqs), "permissions"))
    assert finding.level is CheckLevel.WARN
    assert finding.found.startswith("this user lacks sqs:SendMessage: ")


def test_a_worker_of_a_fifo_queue_does_not_send(sqs: SimulatedSqs) -> None:
    create_queue(sqs, "q.fifo", FifoQueue="true")
    sqs.faults.fail("SendMessageBatch", "AccessDenied", times=inf)
    finding = get_only(select(examine_sqs(sqs, "q.fifo"), "permissions"))
    assert finding.level is CheckLevel.OK
    assert "sqs:SendMessage is refused" in finding.found


def test_a_user_without_any_permission_lacks_that_for_sending_as_well(
    sqs: SimulatedSqs,
) -> None:
    create_good_queue(sqs)
    for operation in ("ChangeMessageVisibility", "DeleteMessage", "SendMessageBatch"):
        sqs.faults.fail(operation, "AccessDenied", times=inf)
    finding = get_only(select(examine_sqs(sqs), "permissions"))
    assert finding.level is CheckLevel.FAIL
    assert finding.found.endswith("sqs:DeleteMessage, sqs:SendMessage")


def test_permissions_that_could_not_be_tried_are_not_reported_as_granted(
    sqs: SimulatedSqs,
) -> None:
    create_good_queue(sqs)
    sqs.faults.fail("DeleteMessage", "ServiceUnavailable", times=inf)
    findings = examine_sqs(sqs)
    finding = get_only(select(findings, "permissions"))
    assert finding.level is CheckLevel.FAIL
    assert "cannot be checked" in finding.found
    assert select(findings, "redrive policy")  # the other checks are made nevertheless


def test_a_customer_managed_key_needs_its_own_permissions() -> None:
    findings = check_attributes("encryption", {"KmsMasterKeyId": "alias/work"})
    assert "kms:Decrypt" in get_only(findings).found


# -- visibility and lease


@pytest.mark.parametrize(
    ("visibility", "lease", "level"),
    [("60", 60.0, CheckLevel.OK), ("600", 60.0, CheckLevel.OK), ("30", 60.0, CheckLevel.WARN)],
)
def test_the_queues_visibility_is_compared_with_the_lease(
    visibility: str, lease: float, level: CheckLevel
) -> None:
    found = {"VisibilityTimeout": visibility}
    finding = get_only(check_attributes("visibility", found, lease_seconds=lease))
    assert finding.level is level
    assert check_attributes("lease", found, lease_seconds=lease) == []


def test_a_lease_too_short_for_long_polls_is_a_warning() -> None:
    found = {"VisibilityTimeout": "60"}
    finding = get_only(check_attributes("lease", found, lease_seconds=2.9))
    assert finding.level is CheckLevel.WARN
    assert check_attributes("lease", found, lease_seconds=3.0) == []


# -- redrive policy and dead letters


@pytest.mark.parametrize(
    ("receives", "level", "word"),
    [
        (None, CheckLevel.FAIL, "none"),
        (1, CheckLevel.FAIL, "no worker has seen"),
        (4, CheckLevel.WARN, "without storing a reason"),
        (5, CheckLevel.OK, "after 5 receives"),
        (6, CheckLevel.OK, "after 6 receives"),
    ],
)
def test_the_redrive_policy_must_leave_room_for_the_attempts(
    receives: int | None, level: CheckLevel, word: str
) -> None:
    found = {} if receives is None else {"RedrivePolicy": policy("arn:x:y", receives)}
    finding = get_only(check_attributes("redrive policy", found, max_attempts=5))
    assert finding.level is level
    assert word in finding.found


def test_a_dead_letter_queue_that_was_deleted_is_a_failure(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    client = sqs.client()
    client.delete_queue(QueueUrl=client.get_queue_url(QueueName="q-dlq")["QueueUrl"])
    finding = get_only(select(examine_sqs(sqs), "dead letters"))
    assert finding.level is CheckLevel.FAIL
    assert "does not exist" in finding.found


def test_a_dead_letter_queue_without_read_permission_is_a_warning(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    # The first call is for the queue itself.
    sqs.faults.fail("GetQueueUrl", "AccessDenied", times=inf, after=1)
    finding = get_only(select(examine_sqs(sqs), "dead letters"))
    assert finding.level is CheckLevel.WARN
    assert "GetQueueUrl" in finding.remedy


def test_waiting_dead_letters_are_a_warning(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    client = sqs.client()
    url = client.get_queue_url(QueueName="q-dlq")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="{}")
    finding = get_only(select(examine_sqs(sqs), "dead letters"))
    assert finding.level is CheckLevel.WARN
    assert "redrive" in finding.remedy


def test_the_configured_dead_letter_queue_is_the_one_examined(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    create_queue(sqs, "graves", MessageRetentionPeriod=str(14 * DAY))
    finding = get_only(select(examine_sqs(sqs, dead_letters="graves"), "dead letters"))
    assert "graves" in finding.found


def test_dead_letters_of_another_kind_of_queue_are_a_failure() -> None:
    fourteen = {"MessageRetentionPeriod": str(14 * DAY)}
    fifo = {**fourteen, "FifoQueue": "true"}
    for dead, source in ((fourteen, fifo), (fifo, {})):
        levels = [result.level for result in compare_dead_letters(dead, source)]
        assert CheckLevel.FAIL in levels


@pytest.mark.parametrize(
    ("kept", "before", "fifo", "level"),
    [
        (14, 4, False, None),
        (4, 4, False, CheckLevel.WARN),
        (1, 4, False, CheckLevel.FAIL),
        (1, 4, True, None),  # their age restarts there
    ],
)
def test_dead_letters_must_be_retained_longer_than_their_source_retains_messages(
    kept: int, before: int, fifo: bool, level: CheckLevel | None
) -> None:
    kind = {"FifoQueue": "true"} if fifo else {}
    dead = {**kind, "MessageRetentionPeriod": str(kept * DAY)}
    source = {**kind, "MessageRetentionPeriod": str(before * DAY)}
    findings = compare_dead_letters(dead, source)
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
def test_the_dead_letter_queue_must_accept_the_sizes_its_source_accepts(
    sqs: SimulatedSqs, takes: int, source: int, level: CheckLevel | None
) -> None:
    keep = {"MessageRetentionPeriod": str(14 * DAY)}
    dead = create_queue(sqs, "q-dlq", MaximumMessageSize=str(takes), **keep)
    create_queue(sqs, MaximumMessageSize=str(source), RedrivePolicy=policy(dead, 6))
    found = select(examine_sqs(sqs), "dead letters")
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
def test_messages_must_not_be_deleted_while_they_wait(seconds: int, level: CheckLevel) -> None:
    found = {"MessageRetentionPeriod": str(seconds)}
    assert get_only(check_attributes("retention", found, lease_seconds=60)).level is level


def test_a_delay_for_all_messages_is_a_warning() -> None:
    assert check_attributes("delay", {"DelaySeconds": "0"}) == []
    finding = get_only(check_attributes("delay", {"DelaySeconds": "30"}))
    assert finding.level is CheckLevel.WARN


@pytest.mark.parametrize(
    ("in_flight", "level"),
    [
        (0, CheckLevel.OK),
        (89_999, CheckLevel.OK),
        (90_000, CheckLevel.WARN),
        (120_000, CheckLevel.FAIL),
    ],
)
def test_a_count_near_the_in_flight_limit_is_a_warning(
    in_flight: int, level: CheckLevel
) -> None:
    found = {"ApproximateNumberOfMessagesNotVisible": str(in_flight)}
    assert get_only(check_attributes("in flight", found)).level is level


# -- Lambda examine_functions that the queue feeds


def mapping(**more: Any) -> dict[str, Any]:
    return {
        "FunctionArn": ARN,
        "State": "Enabled",
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        **more,
    }


def examine_functions(
    sqs: SimulatedSqs, event_mapping: dict[str, Any], timeout: Any
) -> list[CheckResult]:
    response = timeout if isinstance(timeout, str) else {"Timeout": timeout}
    with stub_lambda_client(
        ("list_event_source_mappings", {"EventSourceMappings": [event_mapping]}),
        ("get_function_configuration", response),
    ) as client:
        return select(examine_sqs(sqs, lambda_client=client), "lambda enrich")


@pytest.mark.requirement("R000-073")
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
    """Never below the timeout; Amazon recommends six times of it."""
    create_good_queue(sqs)  # it hides them for 60 s
    found = examine_functions(sqs, mapping(MaximumBatchingWindowInSeconds=window), timeout)
    assert [finding.level for finding in found] == [level, CheckLevel.OK]
    if level is not CheckLevel.OK:
        assert str(6 * timeout + window) in found[0].remedy


def test_a_function_without_batch_item_failures_is_a_failure(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    found = examine_functions(sqs, mapping(FunctionResponseTypes=[]), 10)
    assert found[-1].level is CheckLevel.FAIL
    assert "ReportBatchItemFailures" in found[-1].remedy


def test_a_mapping_that_is_off_is_a_warning(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    found = examine_functions(sqs, mapping(State="Disabled"), 10)
    assert found[0].level is CheckLevel.WARN
    assert "is off" in found[0].found


def test_a_function_without_read_permission_is_not_a_problem(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    found = examine_functions(sqs, mapping(), "AccessDeniedException")
    assert {finding.level for finding in found} == {CheckLevel.OK}
    assert "cannot be seen" in found[0].found


def test_without_permission_to_list_mappings_only_that_is_reported(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    with stub_lambda_client(("list_event_source_mappings", "AccessDeniedException")) as client:
        finding = get_only(select(examine_sqs(sqs, lambda_client=client), "lambda"))
    assert finding.level is CheckLevel.OK
    assert "AccessDeniedException" in finding.found


# -- by URL


def test_doctor_is_found_by_an_sqs_url_and_takes_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"\?lease_seconds="):
        examine_queue("sqs:q?lease_seconds=nonsense", env={})
    with pytest.raises(ConfigError, match="cannot be used"):
        examine_queue("sqs:not a name", env={})
    with pytest.raises(ConfigError, match="cannot be used"):
        examine_queue("https://sqs.us-east-1.amazonaws.com/1234/a%20b", env={})
