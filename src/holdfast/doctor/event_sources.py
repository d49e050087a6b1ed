"""Checks of the Lambda functions that an SQS queue feeds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import get_error_code
from holdfast.adapters.aws.sqs.address import QueueAddress
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.core.errors import HoldfastError
from holdfast.doctor.runner import run_checks

_LEASE_SECONDS = 40.0  # a lease of this length gives each call five seconds


@dataclass(frozen=True, slots=True)
class EventSource:
    """An event source mapping from a queue to a Lambda function.

    `timeout_seconds` is the function's, or None if it cannot be read.
    """

    mapping: Mapping[str, Any]
    timeout_seconds: int | None
    visibility_seconds: int


def check_event_sources(
    address: QueueAddress, arn: str, visibility_seconds: int, client: Any = None
) -> Iterator[CheckResult]:
    """Check every function that the queue feeds.

    It is not a problem if they cannot be listed.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        if client is None:
            location = {"region_name": address.region, "endpoint_url": address.endpoint}
            client = clients.make_fail_fast_client("lambda", _LEASE_SECONDS, **location)
        pages = client.get_paginator("list_event_source_mappings").paginate(EventSourceArn=arn)
        mappings = [each for page in pages for each in page.get("EventSourceMappings", ())]
    except (BotoCoreError, ClientError, HoldfastError) as error:
        code = get_error_code(error) or type(error).__name__
        yield ok(f"cannot list the functions that the queue feeds ({code})")
        return
    if not mappings:
        yield ok("the queue feeds no function here")
    for mapping in mappings:
        arn = str(mapping.get("FunctionArn", ""))
        source = EventSource(mapping, _read_timeout(client, arn), visibility_seconds)
        name = f"lambda {arn.partition(':function:')[2] or arn}"
        rules = (_check_state, _check_timeout, _check_failures)
        yield from run_checks(source, *((name, rule) for rule in rules))


def _read_timeout(client: Any, arn: str) -> int | None:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return int(client.get_function_configuration(FunctionName=arn)["Timeout"])
    except (BotoCoreError, ClientError):  # of another account, or without permission
        return None


def _check_state(source: EventSource) -> Iterator[CheckResult]:
    if source.mapping.get("State") in ("Disabled", "Disabling"):
        yield warn("its event source mapping is off", "enable it, or remove it")


def _check_timeout(source: EventSource) -> Iterator[CheckResult]:
    timeout, visibility = source.timeout_seconds, source.visibility_seconds
    if timeout is None:
        yield ok("its timeout cannot be seen without lambda:GetFunctionConfiguration")
        return
    window = int(source.mapping.get("MaximumBatchingWindowInSeconds") or 0)
    recommended = 6 * timeout + window
    text = f"the function may run {timeout} s, the queue hides its messages {visibility} s"
    if visibility < timeout:
        yield fail(
            f"{text}: they are delivered again while it works",
            f"set the queue's VisibilityTimeout to {recommended}; never below {timeout}",
        )
    elif visibility < recommended:
        yield warn(
            f"{text}: throttled batches have little time for their retries",
            f"set the queue's VisibilityTimeout to {recommended}: six timeouts, and the window",
        )
    else:
        yield ok(text)


def _check_failures(source: EventSource) -> Iterator[CheckResult]:
    if "ReportBatchItemFailures" in (source.mapping.get("FunctionResponseTypes") or ()):
        yield ok("reports the records of a batch that failed")
    else:
        yield fail(
            "ReportBatchItemFailures is off: messages that the function reports as failed are "
            "deleted, and an error redelivers the complete batch, done or not",
            "set FunctionResponseTypes=ReportBatchItemFailures on the event source mapping",
        )
