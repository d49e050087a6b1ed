"""The queue behind a Lambda event source, named by its ARN."""

import re
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.sqs.address import QueueAddress, parse
from holdfast.core.errors import ConfigError

_ARN = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):([0-9]{12}):([A-Za-z0-9_.-]{1,80})")


def client_and_address(where: str, answer_seconds: float) -> tuple[Any, str]:
    """A client that answers within `answer_seconds` or fails, and the queue's address.

    `where` is an ARN, a queue's URL or its name. The URL of an ARN is made, not asked for:
    the role of a Lambda function need not have `sqs:GetQueueUrl`.
    """
    arn = _ARN.fullmatch(where)
    address = QueueAddress(arn[3], region=arn[1]) if arn else parse(_no_other_arn(where))
    client = clients.prompt(
        "sqs",
        8 * answer_seconds,  # it allows a call an eighth of what it is told
        region_name=address.region,
        endpoint_url=address.endpoint,
    )
    if arn is None:
        return client, where
    # The client knows the host: of the partition, or of the endpoint that was set.
    return client, f"{client.meta.endpoint_url.rstrip('/')}/{arn[2]}/{arn[3]}"


def _no_other_arn(where: str) -> str:
    if where.startswith("arn:"):
        raise ConfigError(f"{where[:120]!r} is not the ARN of an SQS queue")
    return where
