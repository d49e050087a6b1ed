"""What doctor thinks of an SQS queue's settings: values in, findings out."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.adapters.aws.sqs.queue_client import LARGEST_BYTES
from holdfast.core.checks import CheckResult, fail, ok, warn

IN_FLIGHT_LIMIT = 120_000
_IN_FLIGHT_MANY = 90_000
_DAY_SECONDS = 86_400
_LONG_POLL_LEASE_SECONDS = 3.0  # below, a third of it is no whole second to wait

Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LambdaMapping:
    """A Lambda function fed by the queue."""

    function: str
    enabled: bool
    timeout_seconds: int | None  # None: it could not be asked
    window_seconds: int
    reports_failures: bool


def queue_check(name: str, found: Attributes) -> Iterator[CheckResult]:
    kind = "FIFO" if _is_fifo(found) else "standard"
    waiting = _number(found, "ApproximateNumberOfMessages")
    yield ok("queue", f"{name} is there: {kind}, about {waiting:,} messages waiting")
    if key := found.get("KmsMasterKeyId"):
        yield ok(
            "encryption",
            f"with the key {key}: pushing needs kms:GenerateDataKey, working kms:Decrypt",
        )


def lease_check(found: Attributes, lease_seconds: float) -> Iterator[CheckResult]:
    """Workers say for how long when they receive; others leave it to the queue."""
    seconds = _number(found, "VisibilityTimeout", 30)
    if seconds < lease_seconds:
        yield warn(
            "visibility",
            f"the queue hides a message for {seconds} s, Holdfast's workers for "
            f"{lease_seconds:g} s: whoever else receives (Lambda) has less time than they",
            f"set the queue's VisibilityTimeout to {lease_seconds:g}, or lease_seconds to less",
        )
    else:
        yield ok("visibility", f"{seconds} s; workers hold for {lease_seconds:g} s at a time")
    if lease_seconds < _LONG_POLL_LEASE_SECONDS:
        yield warn(
            "lease",
            f"{lease_seconds:g} s leaves no time to wait for messages: polls are short ones, "
            "which cost more and may see nothing though there is something",
            "set lease_seconds to 3 or more; 60 is the default",
        )


def redrive_check(found: Attributes, max_attempts: int) -> Iterator[CheckResult]:
    receives = max_receives(found)
    if receives is None:
        yield fail(
            "redrive policy",
            f"none: Holdfast's workers give up after {max_attempts} attempts, anything else "
            "that receives tries for ever",
            "give the queue a RedrivePolicy: a dead-letter queue, and a maxReceiveCount of "
            f"{max_attempts + 1} or more",
        )
    elif receives == 1:
        yield fail(
            "redrive policy",
            "maxReceiveCount is 1: one lost answer to a receive makes a dead letter of a "
            "message that nobody has seen",
            f"set maxReceiveCount to {max_attempts + 1} or more",
        )
    elif receives < max_attempts:
        yield warn(
            "redrive policy",
            f"maxReceiveCount {receives} comes before max_attempts {max_attempts}: SQS moves "
            "the messages, and no reason is kept with them",
            f"set maxReceiveCount to {max_attempts + 1} or more, or max_attempts to less",
        )
    else:
        yield ok(
            "redrive policy", f"after {receives} receives; Holdfast gives up at {max_attempts}"
        )


def max_receives(found: Attributes) -> int | None:
    policy = json.loads(found.get("RedrivePolicy") or "{}")
    return int(policy["maxReceiveCount"]) if "maxReceiveCount" in policy else None


def dead_letters_check(
    name: str, found: Attributes, source: Attributes
) -> Iterator[CheckResult]:
    if _is_fifo(found) != _is_fifo(source):
        kind = "a FIFO" if _is_fifo(source) else "a standard"
        yield fail(
            "dead letters",
            f"{name} is of another kind than its source, and SQS moves nothing between them",
            f"make {kind} queue for them",
        )
    yield from _dead_retention(name, found, source)
    yield from _dead_size(name, found, source)
    count = sum(
        _number(found, f"ApproximateNumberOfMessages{state}")
        for state in ("", "Delayed", "NotVisible")
    )
    if count:
        yield warn(
            "dead letters",
            f"about {count:,} in {name}",
            "`holdfast dead list QUEUE`, mend the cause, `holdfast dead redrive QUEUE --all`",
        )
    else:
        yield ok("dead letters", f"none in {name}")


def _dead_retention(name: str, found: Attributes, source: Attributes) -> Iterator[CheckResult]:
    """A standard queue's message keeps its age when SQS moves it; a FIFO queue's does not."""
    kept, before = _retention(found), _retention(source)
    if _is_fifo(source) or kept > before:
        return
    shorter = "shorter than" if kept < before else "no longer than"
    text = f"{name} keeps them {_days(kept)}, {shorter} the {_days(before)} of their source"
    found_text = f"{text}: their age counts from the first push, so old ones vanish early"
    remedy = "set its MessageRetentionPeriod to 1209600, fourteen days"
    yield (fail if kept < before else warn)("dead letters", found_text, remedy)


def _dead_size(name: str, found: Attributes, source: Attributes) -> Iterator[CheckResult]:
    takes, sent = (
        _number(each, "MaximumMessageSize", LARGEST_BYTES) for each in (found, source)
    )
    if takes < sent:
        yield fail(
            "dead letters",
            f"{name} takes at most {takes:,} bytes and its source {sent:,}: a larger message "
            "cannot be kept as a dead letter, and is delivered again and again",
            f"set its MaximumMessageSize to {LARGEST_BYTES}: the reason needs room as well",
        )


def retention_check(found: Attributes, lease_seconds: float) -> Iterator[CheckResult]:
    seconds = _retention(found)
    text = f"SQS deletes what is older than {_days(seconds)}, done or not"
    remedy = "set the queue's MessageRetentionPeriod to 345600, four days, or more"
    if seconds <= lease_seconds:
        yield fail("retention", f"{text}: that is within one lease", remedy)
    elif seconds < _DAY_SECONDS:
        yield warn("retention", text, remedy)
    else:
        yield ok("retention", text)


def delay_check(found: Attributes) -> Iterator[CheckResult]:
    if seconds := _number(found, "DelaySeconds"):
        yield warn(
            "delay",
            f"the queue holds back every message for {seconds} s, whatever push says",
            "set the queue's DelaySeconds to 0, unless that is meant",
        )


def in_flight_check(found: Attributes) -> Iterator[CheckResult]:
    held = _number(found, "ApproximateNumberOfMessagesNotVisible")
    text = f"about {held:,} messages are held; at {IN_FLIGHT_LIMIT:,} SQS hands out no more"
    remedy = "see who holds them: nacks with long delays and left messages count as well"
    if held >= IN_FLIGHT_LIMIT:
        yield fail("in flight", text, remedy)
    elif held >= _IN_FLIGHT_MANY:
        yield warn("in flight", text, remedy)
    else:
        yield ok("in flight", f"about {held:,} messages are held")


def lambda_check(mapped: LambdaMapping, found: Attributes) -> Iterator[CheckResult]:
    about = f"lambda {mapped.function}"
    if not mapped.enabled:
        yield warn(about, "its event source mapping is off", "enable it, or remove it")
    yield from _lambda_timeout(about, mapped, _number(found, "VisibilityTimeout", 30))
    if mapped.reports_failures:
        yield ok(about, "reports the records of a batch that failed")
    else:
        yield fail(
            about,
            "ReportBatchItemFailures is off: what the function reports as failed is deleted, "
            "and an error brings back the whole batch, done or not",
            "set FunctionResponseTypes=ReportBatchItemFailures on the event source mapping",
        )


def _lambda_timeout(
    about: str, mapped: LambdaMapping, visibility: int
) -> Iterator[CheckResult]:
    timeout = mapped.timeout_seconds
    if timeout is None:
        yield ok(about, "its timeout cannot be seen from here: lambda:GetFunctionConfiguration")
        return
    wanted = 6 * timeout + mapped.window_seconds
    text = f"the function may run {timeout} s, the queue hides its messages {visibility} s"
    if visibility < timeout:
        yield fail(
            about,
            f"{text}: they are handed out again while it works",
            f"set the queue's VisibilityTimeout to {wanted}; never below {timeout}",
        )
    elif visibility < wanted:
        yield warn(
            about,
            f"{text}: throttled batches have little time for their retries",
            f"set the queue's VisibilityTimeout to {wanted}: six timeouts, and the window",
        )
    else:
        yield ok(about, text)


def _is_fifo(found: Attributes) -> bool:
    return found.get("FifoQueue") == "true"


def _number(found: Attributes, name: str, default: int = 0) -> int:
    return int(found.get(name) or default)


def _retention(found: Attributes) -> int:
    return _number(found, "MessageRetentionPeriod", 4 * _DAY_SECONDS)


def _days(seconds: int) -> str:
    if seconds >= _DAY_SECONDS:
        return f"{seconds / _DAY_SECONDS:g} d"
    return f"{seconds:,} s" if seconds < 3600 else f"{seconds / 3600:.3g} h"
