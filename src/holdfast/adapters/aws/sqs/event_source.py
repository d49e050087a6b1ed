"""Find the queue behind a Lambda event source by its ARN."""

import re
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.sqs.address import QueueAddress, parse_address
from holdfast.core.errors import ConfigError

_ARN = re.compile(
    r"arn:[a-z-]+:sqs:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):"
    r"(?P<name>[A-Za-z0-9_.-]{1,80})"
)


def make_client_and_address(source: str, response_timeout_seconds: float) -> tuple[Any, str]:
    """Return a client whose calls respond or fail within that time, and the queue's address.

    `source` is an ARN, a queue's URL or its name. The URL for an ARN is built here instead
    of asking SQS, because the role of a Lambda function may lack `sqs:GetQueueUrl`. Raises
    ConfigError if `source` is none of these.
    """
    arn = _ARN.fullmatch(source)
    address = QueueAddress(arn["name"], region=arn["region"]) if arn else _parse(source)
    client = clients.make_fail_fast_client(
        "sqs",
        8 * response_timeout_seconds,  # it allows each call an eighth of the lease
        region_name=address.region,
        endpoint_url=address.endpoint,
    )
    if arn is None:
        return client, source
    # The client knows the host of the partition, or of the endpoint that was configured.
    host = client.meta.endpoint_url.rstrip("/")
    return client, f"{host}/{arn['account']}/{arn['name']}"


def _parse(source: str) -> QueueAddress:
    if source.startswith("arn:"):
        raise ConfigError(f"{source[:120]!r} is not the ARN of an SQS queue")
    return parse_address(source)
