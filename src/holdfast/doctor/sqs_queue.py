"""Checks of an SQS queue: do its settings prevent lost, stuck and repeated work?

The checks only read settings. They receive no message, because that would count as an attempt.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from holdfast.aws.clients import make_fail_fast_client
from holdfast.aws.errors import (
    DENIED,
    NO_QUEUE,
    get_cause_code,
    get_client_errors,
    get_error_code,
)
from holdfast.doctor.checks import CheckFailed, CheckResult, fail, grade, ok, run_checks, warn
from holdfast.errors import HoldfastError
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.settings import SqsSettings
from holdfast.queues.sqs.address import parse_address
from holdfast.queues.sqs.dead_letters import SQSDeadLetters
from holdfast.queues.sqs.queue_client import MAX_MESSAGE_BYTES, QueueClient
from holdfast.text import format_count

MAX_IN_FLIGHT = 120_000
_WARN_IN_FLIGHT = 90_000
_DAY_SECONDS = 86_400
_MIN_LONG_POLL_LEASE_SECONDS = 3.0  # below it, a third is less than a second to wait
_LAMBDA_LEASE_SECONDS = 40.0  # a lease of this length gives each call five seconds
_TRY_AGAIN = "try again when SQS responds"


@dataclass(frozen=True, slots=True)
class QueueConfiguration:
    """The attributes of one queue, as SQS returns them."""

    name: str
    values: Mapping[str, str]

    def number(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a number."""
        return int(self.values.get(name) or default)

    @property
    def is_fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.values.get("FifoQueue") == "true"

    @property
    def retention_seconds(self) -> int:
        """How long SQS keeps a message."""
        return self.number("MessageRetentionPeriod", 4 * _DAY_SECONDS)

    @property
    def visibility_seconds(self) -> int:
        """How long the queue hides a message that was received."""
        return self.number("VisibilityTimeout", 30)

    @property
    def max_receives(self) -> int | None:
        """The redrive policy's maxReceiveCount, or None if there is no policy."""
        policy = json.loads(self.values.get("RedrivePolicy") or "{}")
        return int(policy["maxReceiveCount"]) if "maxReceiveCount" in policy else None


@dataclass(frozen=True, slots=True)
class SqsQueue:
    """A queue, and the settings of its workers that its attributes must fit.

    `lambda_client` is made when it is needed.
    """

    client: QueueClient
    attributes: QueueConfiguration
    dead_letters: SQSDeadLetters
    settings: SqsSettings
    lambda_client: Any = None


def examine_sqs_queue(
    address: str,
    settings: SqsSettings,
    *,
    client: Any = None,
    lambda_client: Any = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[CheckResult]:
    """Check a queue for workers with these settings, and return the results one by one.

    Raises ConfigError if the address cannot be one. The iterator raises it if the client
    cannot be made, because every check needs it.
    """
    queue = QueueClient(parse_address(address), settings.lease_seconds, client)
    letters = SQSDeadLetters(queue, settings.dead_letters, clock)

    def examine() -> Iterator[CheckResult]:
        queue.retrying_client  # noqa: B018  # makes the client
        with closing(queue):
            yield from run_checks(queue, ("queue", examine_existing))

    def examine_existing(queue: QueueClient) -> Iterator[CheckResult]:
        attributes = _read_attributes(queue)
        subject = SqsQueue(queue, attributes, letters, settings, lambda_client)
        return run_checks(subject, *SQS_QUEUE)

    return examine()


def _read_attributes(queue: QueueClient) -> QueueConfiguration:
    try:
        return QueueConfiguration(queue.address.name, queue.read_attributes("All"))
    except HoldfastError as error:
        code = get_cause_code(error)
        remedy = "check that this machine reaches SQS with the intended region and credentials"
        if code in NO_QUEUE:
            remedy = "create it with your other infrastructure: Holdfast creates no SQS queues"
        elif code in DENIED:
            remedy = "allow it for this user or role, on the queue's ARN"
        raise CheckFailed(str(error), remedy) from error


def check_queue(queue: SqsQueue) -> Iterator[CheckResult]:
    """Report the queue's type and its length."""
    kind = "FIFO" if queue.attributes.is_fifo else "standard"
    waiting = queue.attributes.number("ApproximateNumberOfMessages")
    messages = format_count(waiting, "message")
    yield ok(f"{queue.attributes.name} exists: {kind}, about {messages} waiting")


def check_encryption(queue: SqsQueue) -> Iterator[CheckResult]:
    """Report the key that encrypts messages, because callers need permissions for it."""
    if key := queue.attributes.values.get("KmsMasterKeyId"):
        yield ok(
            f"with the key {key}: push needs kms:GenerateDataKey, workers need kms:Decrypt"
        )


# -- lease and retries


def check_visibility(queue: SqsQueue) -> Iterator[CheckResult]:
    """Compare the visibility timeout with the lease.

    Workers set the visibility when they receive; other receivers use the queue's timeout.
    """
    seconds = queue.attributes.visibility_seconds
    lease = queue.settings.lease_seconds
    if seconds < lease:
        yield warn(
            f"the queue hides a message for {seconds} s, Holdfast's workers hide it for "
            f"{lease:g} s: other receivers (Lambda) have less time than they",
            f"set the queue's VisibilityTimeout to {lease:g}, or lower lease_seconds",
        )
    else:
        yield ok(f"{seconds} s; workers hold for {lease:g} s at a time")


def check_lease(queue: SqsQueue) -> Iterator[CheckResult]:
    """Warn of a lease that is too short for long polls."""
    if (lease := queue.settings.lease_seconds) < _MIN_LONG_POLL_LEASE_SECONDS:
        yield warn(
            f"{lease:g} s leaves no time to wait for messages: polls are short polls, which "
            "cost more and may miss messages that are waiting",
            "set lease_seconds to 3 or more; 60 is the default",
        )


def check_redrive_policy(queue: SqsQueue) -> Iterator[CheckResult]:
    """Compare the redrive policy's maxReceiveCount with the workers' max_attempts."""
    receives, attempts = queue.attributes.max_receives, queue.settings.max_attempts
    if receives is None:
        yield fail(
            "none: Holdfast's workers give up after "
            f"{format_count(attempts, 'attempt')}, but other receivers try forever",
            "give the queue a RedrivePolicy with a dead-letter queue and a maxReceiveCount of "
            f"{attempts + 1} or more",
        )
    elif receives == 1:
        yield fail(
            "maxReceiveCount is 1: if one response to a receive is lost, SQS dead-letters a "
            "message that no worker has seen",
            f"set maxReceiveCount to {attempts + 1} or more",
        )
    elif receives < attempts:
        yield warn(
            f"maxReceiveCount {receives} is below max_attempts {attempts}: SQS moves "
            "the messages without storing a reason",
            f"set maxReceiveCount to {attempts + 1} or more, or lower max_attempts",
        )
    else:
        gives_up = f"Holdfast gives up after {format_count(attempts, 'attempt')}"
        yield ok(f"after {receives} receives; {gives_up}")


# -- dead letters


def check_dead_letters(queue: SqsQueue) -> Iterator[CheckResult]:
    """Check the queue for dead letters, if it exists already."""
    try:
        found = queue.dead_letters.find_queue()
        attributes = {} if found is None else found.read_attributes("All")
    except HoldfastError as error:
        code = get_cause_code(error)
        if code in NO_QUEUE:
            yield fail(
                f"the queue for them does not exist ({error}): a message that fails "
                "permanently stays and is delivered again and again",
                "create it, or name another queue in the redrive policy",
            )
        elif code in DENIED:
            yield warn(
                f"this user may not inspect the queue for them ({code})",
                "allow sqs:GetQueueUrl, GetQueueAttributes and SendMessage there, because "
                "workers send dead letters with their reasons",
            )
        else:
            yield fail(f"cannot be checked: {error}", _TRY_AGAIN)
        return
    if found is not None:
        dead = QueueConfiguration(found.address.name, attributes)
        yield from compare_dead_letters(dead, queue.attributes)


def compare_dead_letters(
    dead: QueueConfiguration, source: QueueConfiguration
) -> Iterator[CheckResult]:
    """Check the queue for dead letters against its source."""
    if dead.is_fifo != source.is_fifo:
        kind = "a FIFO" if source.is_fifo else "a standard"
        yield fail(
            f"{dead.name} is of another type than its source, and SQS moves nothing between "
            "them",
            f"create {kind} queue for them",
        )
    # A standard queue's message keeps its age when SQS moves it; a FIFO queue's does not.
    if not source.is_fifo and dead.retention_seconds <= source.retention_seconds:
        is_shorter = dead.retention_seconds < source.retention_seconds
        yield grade(
            f"{dead.name} keeps them {_format_duration(dead.retention_seconds)}, "
            f"{'shorter than' if is_shorter else 'no longer than'} the "
            f"{_format_duration(source.retention_seconds)} of their source: their age counts "
            "from the first push, so old ones disappear early",
            "set its MessageRetentionPeriod to 1209600, fourteen days",
            fails=is_shorter,
            warns=True,
        )
    limit, source_limit = (
        queue.number("MaximumMessageSize", MAX_MESSAGE_BYTES) for queue in (dead, source)
    )
    if limit < source_limit:
        yield fail(
            f"{dead.name} accepts at most {limit:,} bytes and its source {source_limit:,}: a "
            "larger message cannot be dead-lettered, and is delivered again and again",
            f"set its MaximumMessageSize to {MAX_MESSAGE_BYTES}; the reason needs room as well",
        )
    states = ("", "Delayed", "NotVisible")
    if count := sum(dead.number(f"ApproximateNumberOfMessages{state}") for state in states):
        yield warn(
            f"about {count:,} in {dead.name}",
            "see `holdfast dead list QUEUE`, fix the cause, then run `holdfast dead redrive "
            "QUEUE --all`",
        )
    else:
        yield ok(f"none in {dead.name}")


# -- the other settings


def check_retention(queue: SqsQueue) -> Iterator[CheckResult]:
    """Check how long SQS keeps a message."""
    seconds = queue.attributes.retention_seconds
    text = f"SQS deletes messages older than {_format_duration(seconds)}, settled or not"
    too_short = seconds <= queue.settings.lease_seconds
    yield grade(
        f"{text}: that is not longer than one lease" if too_short else text,
        "set the queue's MessageRetentionPeriod to 345600, four days, or more",
        fails=too_short,
        warns=seconds < _DAY_SECONDS,
    )


def check_delay(queue: SqsQueue) -> Iterator[CheckResult]:
    """Warn of a delay that the queue adds to every message."""
    if seconds := queue.attributes.number("DelaySeconds"):
        yield warn(
            f"the queue delays messages that are pushed without a delay by {seconds} s",
            "set the queue's DelaySeconds to 0, unless that is intended",
        )


def check_in_flight(queue: SqsQueue) -> Iterator[CheckResult]:
    """Compare the number of messages in flight with the limit of SQS."""
    count = queue.attributes.number("ApproximateNumberOfMessagesNotVisible")
    is_near = count >= _WARN_IN_FLIGHT
    limit = f"; at {MAX_IN_FLIGHT:,} SQS delivers no more" if is_near else ""
    yield grade(
        f"about {format_count(count, 'message')} in flight{limit}",
        "find out which workers hold them: nacks with long delays and messages that were "
        "left to expire count as well",
        fails=count >= MAX_IN_FLIGHT,
        warns=is_near,
    )


def _format_duration(seconds: int) -> str:
    if seconds >= _DAY_SECONDS:
        return f"{seconds / _DAY_SECONDS:g} d"
    return f"{seconds:,} s" if seconds < 3600 else f"{seconds / 3600:.3g} h"


# -- the Lambda functions that the queue feeds


def check_lambda(queue: SqsQueue) -> Iterator[CheckResult]:
    """Check every function that the queue feeds. It is no problem if they cannot be listed."""
    address, client = queue.client.address, queue.lambda_client
    location = {"region_name": address.region, "endpoint_url": address.endpoint}
    unlisted: tuple[type[Exception], ...] = (HoldfastError, *get_client_errors())
    try:
        client = client or make_fail_fast_client("lambda", _LAMBDA_LEASE_SECONDS, **location)
        arn = queue.attributes.values.get("QueueArn", "")
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
        visibility_seconds = queue.attributes.visibility_seconds
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


SQS_QUEUE = (
    check_queue,
    check_encryption,
    check_visibility,
    check_lease,
    check_redrive_policy,
    check_dead_letters,
    check_retention,
    check_delay,
    check_in_flight,
    check_lambda,
)
