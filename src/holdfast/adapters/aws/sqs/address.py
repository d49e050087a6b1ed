"""Where a queue is: a name in the account at hand, or a queue's URL."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast.core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_AWS_HOST = re.compile(r"(?:sqs\.)?([a-z0-9-]+?)(?:\.queue)?\.amazonaws\.com(?:\.cn)?")


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """`url` is None for a name: SQS is asked for it. The rest is None for boto3's default."""

    name: str
    url: str | None = None
    region: str | None = None
    endpoint: str | None = None

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


def parse(text: str) -> QueueAddress:
    """`enrich`, `enrich.fifo`, or an http(s) URL of a queue."""
    if text.startswith(("http://", "https://")):
        return _of_url(text)
    return QueueAddress(_checked(text.strip("/")))


def _of_url(url: str) -> QueueAddress:
    parts = urlsplit(url)
    name = _checked(parts.path.rstrip("/").rpartition("/")[2])
    if amazon := _AWS_HOST.fullmatch(parts.hostname or ""):
        return QueueAddress(name, url, region=amazon[1])
    # Not Amazon's: a server of your own, unless an endpoint is configured for boto3.
    return QueueAddress(name, url, endpoint=f"{parts.scheme}://{parts.netloc}")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"SQS queue name {name[:90]!r} cannot be used: it must be 1 to 80 letters, "
            "digits, '-' or '_', and may end in '.fifo'"
        )
    return name
