"""Queues of a stack, and those of other stacks that its parts receive from."""

import json
from collections.abc import Iterator, Sequence

from infra.check.arns import shorten_arn
from infra.check.deployment import DeployedQueue, Deployment

from holdfast.doctor.checks import CheckResult, fail, run_checks, warn
from holdfast.doctor.sqs_queue import SQS_QUEUE, SqsQueue, check_lambda, check_permissions
from holdfast.queues.sqs.address import parse_address
from holdfast.queues.sqs.dead_letters import SQSDeadLetters
from holdfast.queues.sqs.queue_client import QueueClient

_MAX_RETENTION_SECONDS = 14 * 86_400
# The roles of the stack are checked instead of this user, and its functions are parts.
_WORK_QUEUE = [check for check in SQS_QUEUE if check not in (check_permissions, check_lambda)]


def read_queue(deployment: Deployment, url: str) -> None:
    """Add the queue with that URL."""
    name = shorten_arn(url)
    with deployment.note_problem(f"queue {name}"):
        response = deployment.reader.read(
            "sqs", "get_queue_attributes", name, QueueUrl=url, AttributeNames=["All"]
        )
        queue = DeployedQueue(name, response["Attributes"], url)
        deployment.queues[queue.arn] = queue


def read_other_queues(deployment: Deployment) -> None:
    """Add the queues that parts receive from and another stack has made."""
    arns = {arn for part in deployment.parts for arn in part.receives_from}
    unread = {problem.check for problem in deployment.problems}
    for arn in sorted(arns - set(deployment.queues)):
        *_, account, name = arn.split(":")
        if f"queue {name}" in unread:
            continue
        with deployment.note_problem(f"queue {name}"):
            where = {"QueueName": name, "QueueOwnerAWSAccountId": account}
            url = deployment.reader.read("sqs", "get_queue_url", name, **where)["QueueUrl"]
            read_queue(deployment, url)


def check_work_queue(deployment: Deployment, queue: DeployedQueue) -> Iterator[CheckResult]:
    """Check a queue for the settings of the part that receives from it. Raises ConfigError."""
    settings = deployment.find_queue_settings(queue.arn)
    sqs = deployment.reader.client("sqs")
    client = QueueClient(parse_address(queue.url), settings.lease_seconds, sqs)
    letters = SQSDeadLetters(client, settings.dead_letters)
    return run_checks(SqsQueue(client, queue, letters, settings), *_WORK_QUEUE)


# -- queues for dead letters


def check_dead_letter_retention(queue: DeployedQueue) -> Iterator[CheckResult]:
    """Check that dead letters are kept as long as SQS allows."""
    days = queue.retention_seconds / 86_400
    if days < 14:
        yield warn(
            f"keeps dead letters for {days:g} days, counted from the first push",
            f"set its MessageRetentionPeriod to {_MAX_RETENTION_SECONDS}, fourteen days",
        )


def check_redrive_allow_policy(
    sources: Sequence[str], queue: DeployedQueue
) -> Iterator[CheckResult]:
    """Check that the queues with these ARNs, and no others, may send dead letters to it."""
    policy = json.loads(queue.values.get("RedriveAllowPolicy") or "{}")
    match policy.get("redrivePermission", "allowAll"):
        case "byQueue":
            allowed = policy.get("sourceQueueArns", ())
            if missing := [arn for arn in sources if arn not in allowed]:
                yield fail(
                    f"does not accept the dead letters of {', '.join(missing)}",
                    "add them to sourceQueueArns of its RedriveAllowPolicy",
                )
        case "denyAll":
            yield fail(
                "accepts no dead letters, because its RedriveAllowPolicy is denyAll",
                f"set redrivePermission to byQueue, with {', '.join(sources)}",
            )
        case _:
            yield warn(
                "accepts the dead letters of every queue of the account",
                "give it a RedriveAllowPolicy: byQueue, with the ARNs of its sources",
            )
