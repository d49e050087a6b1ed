"""Checks of the Lambda functions that an SQS queue feeds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from holdfast.aws import clients
from holdfast.aws.errors import get_error_code
from holdfast.doctor.checks import CheckResult, fail, ok, warn
from holdfast.errors import HoldfastError
from holdfast.queues.sqs.address import QueueAddress

_LEASE_SECONDS = 40.0  # a lease of this length gives each call five seconds


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
        timeout_seconds = _read_timeout(client, arn)
        name = f"lambda {arn.partition(':function:')[2] or arn}"
        for result in check_mapping(mapping, timeout_seconds, visibility_seconds):
            yield replace(result, check=name)


def _read_timeout(client: Any, arn: str) -> int | None:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return int(client.get_function_configuration(FunctionName=arn)["Timeout"])
    except (BotoCoreError, ClientError):  # of another account, or without permission
        return None


def check_mapping(
    mapping: Mapping[str, Any], timeout_seconds: int | None, visibility_seconds: int
) -> Iterator[CheckResult]:
    """Check an event source mapping. The timeout of its function is None if it is unknown."""
    if mapping.get("State") in ("Disabled", "Disabling"):
        yield warn("its event source mapping is off", "enable it, or remove it")
    window = int(mapping.get("MaximumBatchingWindowInSeconds") or 0)
    yield _compare_timeout(timeout_seconds, window, visibility_seconds)
    if "ReportBatchItemFailures" in (mapping.get("FunctionResponseTypes") or ()):
        yield ok("reports the records of a batch that failed")
    else:
        yield fail(
            "ReportBatchItemFailures is off: messages that the function reports as failed are "
            "deleted, and an error redelivers the complete batch, done or not",
            "set FunctionResponseTypes=ReportBatchItemFailures on the event source mapping",
        )


def _compare_timeout(timeout: int | None, window: int, visibility: int) -> CheckResult:
    if timeout is None:
        return ok("its timeout cannot be seen without lambda:GetFunctionConfiguration")
    recommended = 6 * timeout + window
    text = f"the function may run {timeout} s, the queue hides its messages {visibility} s"
    if visibility < timeout:
        return fail(
            f"{text}: they are delivered again while it works",
            f"set the queue's VisibilityTimeout to {recommended}; never below {timeout}",
        )
    if visibility < recommended:
        return warn(
            f"{text}: throttled batches have little time for their retries",
            f"set the queue's VisibilityTimeout to {recommended}: six timeouts, and the window",
        )
    return ok(text)
