"""Lambda's event source: find its queue by an ARN, and adopt the deliveries that it made."""

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from holdfast.aws import clients
from holdfast.errors import ConfigError, HoldfastError
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import Clock
from holdfast.lease.lease import Refused, Renewal, Renewed, Unanswered
from holdfast.queues.sqs.address import QueueAddress, parse_address
from holdfast.queues.sqs.queue_client import Receipt, split_batches

_MAX_TRIES = 3
_BACKOFF = Backoff(first_seconds=0.1, factor=2.0, max_seconds=1.0)
_random = Random()

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
    if arn is None and source.startswith("arn:"):
        raise ConfigError(f"{source[:120]!r} is not the ARN of an SQS queue")
    address = QueueAddress(arn["name"], region=arn["region"]) if arn else parse_address(source)
    lease_seconds = 8 * response_timeout_seconds  # of which each call is allowed an eighth
    client = clients.make_fail_fast_client("sqs", lease_seconds, **address.location)
    if arn is None:
        return client, source
    # The client knows the host of the partition, or of the endpoint that was configured.
    host = client.meta.endpoint_url.rstrip("/")
    return client, f"{host}/{arn['account']}/{arn['name']}"


def adopt(
    receipts: Sequence[Receipt],
    extend: Callable[[Sequence[Receipt]], Sequence[Renewal]],
    clock: Clock,
    until: float,
) -> tuple[dict[Receipt, float], set[str]]:
    """Extend receipts of deliveries that another receiver made, ten to a call.

    Each batch is tried once before any is tried again, because a few failing receipts must
    not make the others expire. Returns the receipts that SQS extended, each with the monotonic
    time before the call, and why the others were not extended.
    """
    adopted: dict[Receipt, float] = {}
    problems: set[str] = set()
    left = [receipt for receipt in receipts if receipt.handle]
    for tries in range(1, _MAX_TRIES + 1):
        retry: list[Receipt] = []
        for batch in split_batches(left):
            asked_at = clock.monotonic()
            renewals = _try_extend(batch, extend, has_time=asked_at < until)
            for receipt, renewal in zip(batch, renewals, strict=True):
                match renewal:
                    case Renewed():
                        adopted[receipt] = asked_at
                    case Refused(reason):
                        problems.add(reason)
                    case Unanswered(reason):
                        problems.add(reason)
                        retry.append(receipt)
        left = retry
        if not left or tries == _MAX_TRIES or clock.monotonic() >= until:
            break
        clock.sleep(_BACKOFF.delay(tries, _random))
    return adopted, problems


def _try_extend(
    batch: Sequence[Receipt],
    extend: Callable[[Sequence[Receipt]], Sequence[Renewal]],
    *,
    has_time: bool,
) -> Sequence[Renewal]:
    if not has_time:
        return [Unanswered("there is no time left to extend them")] * len(batch)
    try:
        return extend(batch)
    except HoldfastError as error:
        return [Unanswered(str(error))] * len(batch)
