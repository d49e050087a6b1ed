"""Checks of the queues of a stack, beyond those that every SQS queue has."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.adapters.aws.sqs.address import parse_address
from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.queue_client import QueueClient
from holdfast.config.queue import SqsSettings
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.doctor.sqs_queue import (
    SqsQueue,
    check_dead_letters,
    check_delay,
    check_in_flight,
    check_lease,
    check_redrive_policy,
    check_retention,
    check_visibility,
)
from holdfast.doctor.stack.aws_reader import AwsReader
from holdfast.doctor.stack.deployment import DeployedQueue

_MAX_RETENTION_SECONDS = 14 * 86_400


def make_subject(reader: AwsReader, queue: DeployedQueue, settings: SqsSettings) -> SqsQueue:
    """Return the subject of the checks of an SQS queue. No call is made."""
    address = parse_address(queue.url)
    client = QueueClient(address, settings.lease_seconds, reader.client("sqs"))
    letters = SQSDeadLetters(client, settings.dead_letters, SYSTEM_CLOCK)
    return SqsQueue(client, queue.attributes, letters, settings)


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A queue for dead letters, with the ARNs of the queues of the stack that use it."""

    queue: DeployedQueue
    sources: Sequence[str]


def check_dead_letter_retention(dead: DeadLetterQueue) -> Iterator[CheckResult]:
    """Check that dead letters are kept as long as SQS allows."""
    days = dead.queue.attributes.retention_seconds / 86_400
    if days < 14:
        yield warn(
            f"keeps dead letters for {days:g} days, counted from the first push",
            f"set its MessageRetentionPeriod to {_MAX_RETENTION_SECONDS}, fourteen days",
        )
    else:
        yield ok(f"keeps dead letters for {days:g} days")


def check_redrive_allow_policy(dead: DeadLetterQueue) -> Iterator[CheckResult]:
    """Check which queues may send their dead letters to it."""
    policy = json.loads(dead.queue.attributes.values.get("RedriveAllowPolicy") or "{}")
    match policy.get("redrivePermission", "allowAll"):
        case "byQueue":
            allowed = policy.get("sourceQueueArns", ())
            if missing := [arn for arn in dead.sources if arn not in allowed]:
                yield fail(
                    f"does not accept the dead letters of {', '.join(missing)}",
                    "add them to sourceQueueArns of its RedriveAllowPolicy",
                )
        case "denyAll":
            yield fail(
                "accepts no dead letters, because its RedriveAllowPolicy is denyAll",
                f"set redrivePermission to byQueue, with {', '.join(dead.sources)}",
            )
        case _:
            yield warn(
                "accepts the dead letters of every queue of the account",
                "give it a RedriveAllowPolicy: byQueue, with the ARNs of its sources",
            )


WORK_QUEUE = (
    ("visibility", check_visibility),
    ("lease", check_lease),
    ("redrive policy", check_redrive_policy),
    ("dead letters", check_dead_letters),
    ("retention", check_retention),
    ("delay", check_delay),
    ("in flight", check_in_flight),
)
DEAD_LETTER_QUEUE = (
    ("retention", check_dead_letter_retention),
    ("redrive allow", check_redrive_allow_policy),
)
