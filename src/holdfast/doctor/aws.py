"""What checks of AWS share: errors that become results, and functions that a queue feeds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from holdfast.aws.clients import make_fail_fast_client
from holdfast.aws.errors import DENIED, describe_cause, get_client_errors, get_error_code
from holdfast.doctor.checks import CheckFailed, CheckResult, fail, ok, warn
from holdfast.errors import HoldfastError
from holdfast.queues.sqs.address import QueueAddress

_LEASE_SECONDS = 40.0  # a lease of this length gives each call five seconds


@contextmanager
def explain_aws_errors(problem: str, *, denied: str, otherwise: str) -> Iterator[None]:
    """Turn an error of an AWS call inside into CheckFailed, with the error's code.

    `denied` is the remedy if the call is not allowed, and `otherwise` that of other errors.
    """
    try:
        yield
    except get_client_errors() as error:
        remedy = denied if get_error_code(error) in DENIED else otherwise
        raise CheckFailed(f"{problem} ({describe_cause(error)})", remedy) from error


def check_event_sources(
    address: QueueAddress, arn: str, visibility_seconds: int, client: Any = None
) -> Iterator[CheckResult]:
    """Check every function that the queue feeds. It is no problem if they cannot be listed."""
    location = {"region_name": address.region, "endpoint_url": address.endpoint}
    unlisted: tuple[type[Exception], ...] = (HoldfastError, *get_client_errors())
    try:
        client = client or make_fail_fast_client("lambda", _LEASE_SECONDS, **location)
        pages = client.get_paginator("list_event_source_mappings").paginate(EventSourceArn=arn)
        mappings = [each for page in pages for each in page.get("EventSourceMappings", ())]
    except unlisted as error:
        code = get_error_code(error) or type(error).__name__
        yield ok(f"cannot list the functions that the queue feeds ({code})")
        return
    if not mappings:
        yield ok("the queue feeds no function here")
    for mapping in mappings:
        arn, timeout_seconds = str(mapping.get("FunctionArn", "")), None
        with suppress(*get_client_errors()):  # of another account, or without permission
            configuration = client.get_function_configuration(FunctionName=arn)
            timeout_seconds = int(configuration["Timeout"])
        name = f"lambda {arn.partition(':function:')[2] or arn}"
        for result in check_mapping(mapping, timeout_seconds, visibility_seconds):
            yield replace(result, check=name)


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
