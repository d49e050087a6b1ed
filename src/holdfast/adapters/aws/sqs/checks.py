"""The rules of `doctor` for an SQS queue's settings, as pure functions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.adapters.aws.sqs.queue_client import MAX_MESSAGE_BYTES
from holdfast.core.checks import CheckResult, fail, ok, warn

MAX_IN_FLIGHT = 120_000
_WARN_IN_FLIGHT = 90_000
_DAY_SECONDS = 86_400
_MIN_LONG_POLL_LEASE_SECONDS = 3.0  # below it, a third is less than a second to wait

Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LambdaMapping:
    """An event source mapping from the queue to a Lambda function."""

    function: str
    enabled: bool
    timeout_seconds: int | None  # None if it could not be read
    window_seconds: int
    reports_failures: bool


def check_queue(name: str, attributes: Attributes) -> Iterator[CheckResult]:
    """Report the queue's type, its length and its encryption."""
    kind = "FIFO" if _is_fifo(attributes) else "standard"
    waiting = _read_number(attributes, "ApproximateNumberOfMessages")
    yield ok("queue", f"{name} exists: {kind}, about {waiting:,} messages waiting")
    if key := attributes.get("KmsMasterKeyId"):
        yield ok(
            "encryption",
            f"with the key {key}: push needs kms:GenerateDataKey, workers need kms:Decrypt",
        )


def check_lease(attributes: Attributes, lease_seconds: float) -> Iterator[CheckResult]:
    """Check the visibility timeout and the lease's length.

    Workers set the visibility when they receive; other receivers use the queue's timeout.
    """
    seconds = _read_number(attributes, "VisibilityTimeout", 30)
    if seconds < lease_seconds:
        yield warn(
            "visibility",
            f"the queue hides a message for {seconds} s, Holdfast's workers hide it for "
            f"{lease_seconds:g} s: other receivers (Lambda) have less time than they",
            f"set the queue's VisibilityTimeout to {lease_seconds:g}, or lower lease_seconds",
        )
    else:
        yield ok("visibility", f"{seconds} s; workers hold for {lease_seconds:g} s at a time")
    if lease_seconds < _MIN_LONG_POLL_LEASE_SECONDS:
        yield warn(
            "lease",
            f"{lease_seconds:g} s leaves no time to wait for messages: polls are short polls, "
            "which cost more and may miss messages that are waiting",
            "set lease_seconds to 3 or more; 60 is the default",
        )


def check_redrive_policy(attributes: Attributes, max_attempts: int) -> Iterator[CheckResult]:
    """Compare the redrive policy's maxReceiveCount with the workers' max_attempts."""
    receives = read_max_receives(attributes)
    if receives is None:
        yield fail(
            "redrive policy",
            f"none: Holdfast's workers give up after {max_attempts} attempts, but other "
            "receivers try forever",
            "give the queue a RedrivePolicy with a dead-letter queue and a maxReceiveCount of "
            f"{max_attempts + 1} or more",
        )
    elif receives == 1:
        yield fail(
            "redrive policy",
            "maxReceiveCount is 1: if one response to a receive is lost, SQS dead-letters a "
            "message that no worker has seen",
            f"set maxReceiveCount to {max_attempts + 1} or more",
        )
    elif receives < max_attempts:
        yield warn(
            "redrive policy",
            f"maxReceiveCount {receives} is below max_attempts {max_attempts}: SQS moves "
            "the messages without storing a reason",
            f"set maxReceiveCount to {max_attempts + 1} or more, or lower max_attempts",
        )
    else:
        yield ok(
            "redrive policy",
            f"after {receives} receives; Holdfast gives up after {max_attempts} attempts",
        )


def read_max_receives(attributes: Attributes) -> int | None:
    """Return the redrive policy's maxReceiveCount, or None if there is no policy."""
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    return int(policy["maxReceiveCount"]) if "maxReceiveCount" in policy else None


def check_dead_letters(
    name: str, attributes: Attributes, source: Attributes
) -> Iterator[CheckResult]:
    """Check the queue for dead letters against the attributes of its source."""
    if _is_fifo(attributes) != _is_fifo(source):
        kind = "a FIFO" if _is_fifo(source) else "a standard"
        yield fail(
            "dead letters",
            f"{name} is of another type than its source, and SQS moves nothing between them",
            f"create {kind} queue for them",
        )
    yield from _check_dead_letter_retention(name, attributes, source)
    yield from _check_dead_letter_size(name, attributes, source)
    count = sum(
        _read_number(attributes, f"ApproximateNumberOfMessages{state}")
        for state in ("", "Delayed", "NotVisible")
    )
    if count:
        yield warn(
            "dead letters",
            f"about {count:,} in {name}",
            "see `holdfast dead list QUEUE`, fix the cause, then run `holdfast dead redrive "
            "QUEUE --all`",
        )
    else:
        yield ok("dead letters", f"none in {name}")


def _check_dead_letter_retention(
    name: str, attributes: Attributes, source: Attributes
) -> Iterator[CheckResult]:
    """Compare the retention of dead letters with that of their source.

    A standard queue's message keeps its age when SQS moves it; a FIFO queue's does not.
    """
    dead_seconds, source_seconds = _read_retention(attributes), _read_retention(source)
    if _is_fifo(source) or dead_seconds > source_seconds:
        return
    is_shorter = dead_seconds < source_seconds
    problem = (
        f"{name} keeps them {_format_duration(dead_seconds)}, "
        f"{'shorter than' if is_shorter else 'no longer than'} the "
        f"{_format_duration(source_seconds)} of their source: their age counts from the "
        "first push, so old ones disappear early"
    )
    remedy = "set its MessageRetentionPeriod to 1209600, fourteen days"
    yield (fail if is_shorter else warn)("dead letters", problem, remedy)


def _check_dead_letter_size(
    name: str, attributes: Attributes, source: Attributes
) -> Iterator[CheckResult]:
    limit, source_limit = (
        _read_number(queue, "MaximumMessageSize", MAX_MESSAGE_BYTES)
        for queue in (attributes, source)
    )
    if limit < source_limit:
        yield fail(
            "dead letters",
            f"{name} accepts at most {limit:,} bytes and its source {source_limit:,}: a larger "
            "message cannot be dead-lettered, and is delivered again and again",
            f"set its MaximumMessageSize to {MAX_MESSAGE_BYTES}; the reason needs room as well",
        )


def check_retention(attributes: Attributes, lease_seconds: float) -> Iterator[CheckResult]:
    """Check how long SQS keeps a message."""
    seconds = _read_retention(attributes)
    text = f"SQS deletes messages older than {_format_duration(seconds)}, settled or not"
    remedy = "set the queue's MessageRetentionPeriod to 345600, four days, or more"
    if seconds <= lease_seconds:
        yield fail("retention", f"{text}: that is not longer than one lease", remedy)
    elif seconds < _DAY_SECONDS:
        yield warn("retention", text, remedy)
    else:
        yield ok("retention", text)


def check_delay(attributes: Attributes) -> Iterator[CheckResult]:
    """Warn of a delay that the queue adds to every message."""
    if seconds := _read_number(attributes, "DelaySeconds"):
        yield warn(
            "delay",
            f"the queue delays messages that are pushed without a delay by {seconds} s",
            "set the queue's DelaySeconds to 0, unless that is intended",
        )


def check_in_flight(attributes: Attributes) -> Iterator[CheckResult]:
    """Compare the number of messages in flight with the limit of SQS."""
    count = _read_number(attributes, "ApproximateNumberOfMessagesNotVisible")
    text = f"about {count:,} messages are in flight; at {MAX_IN_FLIGHT:,} SQS delivers no more"
    remedy = (
        "find out which workers hold them: nacks with long delays and messages that were "
        "left to expire count as well"
    )
    if count >= MAX_IN_FLIGHT:
        yield fail("in flight", text, remedy)
    elif count >= _WARN_IN_FLIGHT:
        yield warn("in flight", text, remedy)
    else:
        yield ok("in flight", f"about {count:,} messages are in flight")


def check_lambda(mapping: LambdaMapping, attributes: Attributes) -> Iterator[CheckResult]:
    """Check the event source mapping of a Lambda function."""
    name = f"lambda {mapping.function}"
    if not mapping.enabled:
        yield warn(name, "its event source mapping is off", "enable it, or remove it")
    yield from _check_lambda_timeout(
        name, mapping, _read_number(attributes, "VisibilityTimeout", 30)
    )
    if mapping.reports_failures:
        yield ok(name, "reports the records of a batch that failed")
    else:
        yield fail(
            name,
            "ReportBatchItemFailures is off: messages that the function reports as failed are "
            "deleted, and an error redelivers the complete batch, done or not",
            "set FunctionResponseTypes=ReportBatchItemFailures on the event source mapping",
        )


def _check_lambda_timeout(
    name: str, mapping: LambdaMapping, visibility: int
) -> Iterator[CheckResult]:
    timeout = mapping.timeout_seconds
    if timeout is None:
        yield ok(name, "its timeout cannot be seen without lambda:GetFunctionConfiguration")
        return
    recommended = 6 * timeout + mapping.window_seconds
    text = f"the function may run {timeout} s, the queue hides its messages {visibility} s"
    if visibility < timeout:
        yield fail(
            name,
            f"{text}: they are delivered again while it works",
            f"set the queue's VisibilityTimeout to {recommended}; never below {timeout}",
        )
    elif visibility < recommended:
        yield warn(
            name,
            f"{text}: throttled batches have little time for their retries",
            f"set the queue's VisibilityTimeout to {recommended}: six timeouts, and the window",
        )
    else:
        yield ok(name, text)


def _is_fifo(attributes: Attributes) -> bool:
    return attributes.get("FifoQueue") == "true"


def _read_number(attributes: Attributes, name: str, default: int = 0) -> int:
    return int(attributes.get(name) or default)


def _read_retention(attributes: Attributes) -> int:
    return _read_number(attributes, "MessageRetentionPeriod", 4 * _DAY_SECONDS)


def _format_duration(seconds: int) -> str:
    if seconds >= _DAY_SECONDS:
        return f"{seconds / _DAY_SECONDS:g} d"
    return f"{seconds:,} s" if seconds < 3600 else f"{seconds / 3600:.3g} h"
