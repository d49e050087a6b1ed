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
from holdfast.doctor.checks import CheckLevel, CheckResult, run_checks
from holdfast.doctor.sqs_queue import SQS_QUEUE, QueueConfiguration, SqsQueue, examine_sqs_queue
from holdfast.queues.settings import SqsSettings
from holdfast.testing import SimulatedSqs

DAY = 86_400
IN_FLIGHT = "ApproximateNumberOfMessagesNotVisible"
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


def redrive(receives: int) -> dict[str, str]:
    return {"RedrivePolicy": policy("arn:x:y", receives)}


def keep(days: float) -> dict[str, str]:
    return {"MessageRetentionPeriod": str(round(days * DAY))}


def accept(size: int) -> dict[str, str]:
    return {"MaximumMessageSize": str(size)}


def create_good_queue(sqs: SimulatedSqs) -> None:
    dead = create_queue(sqs, "q-dlq", **keep(14))
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
    check: str, attributes: dict[str, str], **settings: Any
) -> list[CheckResult]:
    """Return the results of one check that needs only a queue's attributes."""
    unused: Any = None
    queue = SqsQueue(
        unused, QueueConfiguration("q", attributes), unused, SqsSettings(**settings)
    )
    name = f"check_{check.replace(' ', '_')}"
    return list(run_checks(queue, *[each for each in SQS_QUEUE if each.__name__ == name]))


def find_complaints(results: Iterable[CheckResult], check: str = "") -> list[CheckResult]:
    """Return the results that are not OK, of one check or of all."""
    return [
        result
        for result in results
        if result.level is not CheckLevel.OK and result.check.startswith(check)
    ]


def get_only(results: Iterable[CheckResult], check: str) -> CheckResult:
    [result] = [result for result in results if result.check == check]
    return result


# -- all checks


def test_a_queue_that_is_set_up_well_has_no_problems(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    results = examine_sqs(sqs)
    assert find_complaints(results) == []
    assert {result.check for result in results} == {
        "queue", "visibility", "redrive policy", "dead letters", "retention",
        "in flight", "lambda",
    }  # fmt: skip


def test_every_problem_has_a_remedy(sqs: SimulatedSqs) -> None:
    create_queue(sqs, VisibilityTimeout="10", MessageRetentionPeriod="60", DelaySeconds="5")
    complaints = find_complaints(examine_sqs(sqs, lease_seconds=2))
    assert len(complaints) >= 4
    assert all(result.remedy for result in complaints)


def test_it_changes_nothing_and_receives_nothing(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    client = sqs.client()
    url = client.get_queue_url(QueueName="q")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="{}")
    sqs.calls.clear()
    examine_sqs(sqs)
    assert {call.operation for call in sqs.calls} <= {"GetQueueUrl", "GetQueueAttributes"}
    [message] = client.receive_message(
        QueueUrl=url, AttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


# -- access


@pytest.mark.parametrize(
    ("faults", "found", "remedy"),
    [
        (None, "no such queue", "create it"),
        ({"code": "AccessDenied"}, "sqs:GetQueueAttributes", "allow it"),
        ({"error": EndpointConnectionError(endpoint_url="http://sqs")}, "", "region"),
    ],
)
def test_a_queue_that_cannot_be_read_is_the_only_result(
    sqs: SimulatedSqs, faults: dict[str, Any] | None, found: str, remedy: str
) -> None:
    if faults is not None:
        create_good_queue(sqs)
        sqs.faults.fail("GetQueueAttributes", times=inf, **faults)
    [result] = examine_sqs_queue("q", SqsSettings(), client=sqs.client())
    assert (result.check, result.level) == ("queue", CheckLevel.FAIL)
    assert found in result.found
    assert remedy in result.remedy


# -- settings


@pytest.mark.parametrize(
    ("check", "attributes", "settings", "level", "text"),
    [
        ("encryption", {"KmsMasterKeyId": "alias/work"}, {}, CheckLevel.OK, "kms:Decrypt"),
        ("visibility", {"VisibilityTimeout": "60"}, {}, CheckLevel.OK, "60 s"),
        ("visibility", {"VisibilityTimeout": "30"}, {}, CheckLevel.WARN, "30 s"),
        ("lease", {}, {"lease_seconds": 2.9}, CheckLevel.WARN, "short polls"),
        ("lease", {}, {"lease_seconds": 3.0}, None, ""),
        ("redrive policy", {}, {}, CheckLevel.FAIL, "none"),
        ("redrive policy", redrive(1), {}, CheckLevel.FAIL, "no worker has seen"),
        ("redrive policy", redrive(4), {}, CheckLevel.WARN, "without storing a reason"),
        ("redrive policy", redrive(5), {}, CheckLevel.OK, "after 5 receives"),
        ("retention", keep(1), {}, CheckLevel.OK, "1 d"),
        ("retention", keep(1 / 24), {}, CheckLevel.WARN, "1 h"),
        ("retention", keep(60 / DAY), {}, CheckLevel.FAIL, "not longer than one lease"),
        ("delay", {"DelaySeconds": "0"}, {}, None, ""),
        ("delay", {"DelaySeconds": "30"}, {}, CheckLevel.WARN, "30 s"),
        ("in flight", {IN_FLIGHT: "89999"}, {}, CheckLevel.OK, "89,999"),
        ("in flight", {IN_FLIGHT: "90000"}, {}, CheckLevel.WARN, "90,000"),
        ("in flight", {IN_FLIGHT: "120000"}, {}, CheckLevel.FAIL, "120,000"),
    ],
)
def test_each_setting_is_judged(
    check: str,
    attributes: dict[str, str],
    settings: dict[str, float],
    level: CheckLevel | None,
    text: str,
) -> None:
    results = check_attributes(check, attributes, **settings)
    assert [result.level for result in results] == ([] if level is None else [level])
    assert all(text in result.found for result in results)


# -- dead letters


def test_a_dead_letter_queue_that_was_deleted_is_a_failure(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    client = sqs.client()
    client.delete_queue(QueueUrl=client.get_queue_url(QueueName="q-dlq")["QueueUrl"])
    result = get_only(examine_sqs(sqs), "dead letters")
    assert result.level is CheckLevel.FAIL
    assert "does not exist" in result.found


def test_a_dead_letter_queue_without_read_permission_is_a_warning(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    # The first call is for the queue itself.
    sqs.faults.fail("GetQueueUrl", "AccessDenied", times=inf, after=1)
    result = get_only(examine_sqs(sqs), "dead letters")
    assert result.level is CheckLevel.WARN
    assert "GetQueueUrl" in result.remedy


def test_waiting_dead_letters_are_a_warning(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    client = sqs.client()
    url = client.get_queue_url(QueueName="q-dlq")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="{}")
    result = get_only(examine_sqs(sqs), "dead letters")
    assert result.level is CheckLevel.WARN
    assert "redrive" in result.remedy


def test_the_configured_dead_letter_queue_is_the_one_examined(sqs: SimulatedSqs) -> None:
    create_good_queue(sqs)
    create_queue(sqs, "graves", **keep(14))
    result = get_only(examine_sqs(sqs, dead_letters="graves"), "dead letters")
    assert "graves" in result.found


FIFO = {"FifoQueue": "true"}


@pytest.mark.parametrize(
    ("dead", "source", "level", "text"),
    [
        (keep(14), keep(4), None, ""),
        (keep(4), keep(4), CheckLevel.WARN, "no longer than"),
        (keep(1), keep(4), CheckLevel.FAIL, "shorter than"),
        (keep(1) | FIFO, keep(4) | FIFO, None, ""),  # their age restarts there
        (keep(14), keep(4) | FIFO, CheckLevel.FAIL, "another type"),
        (keep(14) | FIFO, keep(4), CheckLevel.FAIL, "another type"),
        (keep(14) | accept(262_144), accept(1_048_576), CheckLevel.FAIL, "at most 262,144"),
        (keep(14) | accept(262_144), accept(262_144), None, ""),
        (keep(14) | accept(1_048_576), accept(262_144), None, ""),
    ],
)
def test_the_dead_letter_queue_must_fit_its_source(
    dead: dict[str, str], source: dict[str, str], level: CheckLevel | None, text: str
) -> None:
    complaints = find_complaints(
        sqs_queue.compare_dead_letters(
            QueueConfiguration("dead", dead), QueueConfiguration("q", source)
        )
    )
    assert [result.level for result in complaints] == ([] if level is None else [level])
    assert all(text in result.found for result in complaints)


# -- Lambda functions that the queue feeds


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
        return [
            result
            for result in examine_sqs(sqs, lambda_client=client)
            if result.check == "lambda enrich"
        ]


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
        finding = get_only(examine_sqs(sqs, lambda_client=client), "lambda")
    assert finding.level is CheckLevel.OK
    assert "AccessDeniedException" in finding.found
