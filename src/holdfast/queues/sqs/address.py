"""The address of a queue: a name in the current account, a queue's URL, or an ARN."""

import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from holdfast.aws import clients
from holdfast.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_AWS_HOST = re.compile(r"(?:sqs\.)?([a-z0-9-]+?)(?:\.queue)?\.amazonaws\.com(?:\.cn)?")
_ARN = re.compile(
    r"arn:[a-z-]+:sqs:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):"
    r"(?P<name>[A-Za-z0-9_.-]{1,80})"
)


class QueueAddress(NamedTuple):
    """The address of one queue.

    `url` is None if only the name is known; SQS is then asked for the URL. `region` and
    `endpoint` are None if boto3's default applies.
    """

    name: str
    url: str | None = None
    region: str | None = None
    endpoint: str | None = None

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.name.endswith(".fifo")

    @property
    def location(self) -> dict[str, str | None]:
        """The region and the endpoint, as the makers of clients take them."""
        return {"region_name": self.region, "endpoint_url": self.endpoint}


def parse_address(text: str) -> QueueAddress:
    """Parse a name such as `enrich` or `enrich.fifo`, or the http(s) URL of a queue.

    Raises ConfigError if SQS does not allow the name.
    """
    if text.startswith(("http://", "https://")):
        return _parse_url(text)
    return QueueAddress(_check_name(text.strip("/")))


def _parse_url(url: str) -> QueueAddress:
    parts = urlsplit(url)
    name = _check_name(parts.path.rstrip("/").rpartition("/")[2])
    if amazon := _AWS_HOST.fullmatch(parts.hostname or ""):
        return QueueAddress(name, url, region=amazon[1])
    # The host is not Amazon's, so it is a server of the user's own. An endpoint that is
    # configured for boto3 takes precedence over it.
    return QueueAddress(name, url, endpoint=f"{parts.scheme}://{parts.netloc}")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"SQS queue name {name[:90]!r} cannot be used: it must be 1 to 80 letters, "
            "digits, '-' or '_', and may end in '.fifo'"
        )
    return name


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
