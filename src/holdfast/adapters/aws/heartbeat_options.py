"""The options of a heartbeat, checked, and the places they may come from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from holdfast.adapters.aws.clients import make_fail_fast_client, make_retrying_client
from holdfast.adapters.aws.errors import translate_error
from holdfast.adapters.aws.sqs import address
from holdfast.core.errors import ConfigError

MAX_VISIBILITY_SECONDS = 43_200
"""The longest time for which SQS hides a message, counted from its receive."""

INTERVAL_VARIABLE = "SQS_HEARTBEAT_INTERVAL_MS"

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    """The options of one heartbeat.

    Raises ValueError, with the parameter's name, for a value that cannot work.
    """

    interval_sec: float
    visibility_timeout_sec: int
    initial_visibility_sec: float | None = None
    initial_beat: bool = False
    max_transient_failures: int | None = None
    join_timeout_sec: float | None = None
    stall_timeout_sec: float | None = None
    max_duration_sec: float | None = None

    def __post_init__(self) -> None:
        _check_timeout(self.visibility_timeout_sec)
        _check_positive("interval_sec", self.interval_sec)
        if self.interval_sec >= self.visibility_timeout_sec:
            raise ValueError(
                f"visibility_timeout_sec ({self.visibility_timeout_sec}) must be greater "
                f"than interval_sec ({self.interval_sec}): the message would reappear "
                "before each beat"
            )
        for name in ("join_timeout_sec", "stall_timeout_sec", "max_duration_sec"):
            if (seconds := getattr(self, name)) is not None:
                _check_positive(name, seconds)
        if self.initial_visibility_sec is not None:
            _check_number("initial_visibility_sec", self.initial_visibility_sec)
        if self.max_transient_failures is not None:
            _check_count("max_transient_failures", self.max_transient_failures)

    @property
    def renew_after(self) -> float:
        """The fraction of the visibility that passes between two extensions."""
        return self.interval_sec / self.visibility_timeout_sec


def check_text(name: str, text: Any) -> None:
    """Raise ValueError unless `text` is a string that is not blank."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} must be a string that is not empty")


def check_received_at(received_at: float | None, now: float) -> None:
    """Raise ValueError unless `received_at` is a time in epoch seconds, as `now` is.

    SQS reports milliseconds, which are far in the future when read as seconds.
    """
    if received_at is None:
        return
    _check_number("received_at", received_at)
    if not 0 < received_at < now + _DAY_SECONDS:
        raise ValueError(
            f"received_at must be the receive's time in seconds since 1970, not {received_at}"
            " (SQS reports milliseconds)"
        )


def interval_from_env(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the interval of SQS_HEARTBEAT_INTERVAL_MS in seconds, or None if it is unset."""
    text = environ.get(INTERVAL_VARIABLE, "").strip()
    if not text:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= MAX_VISIBILITY_SECONDS * 1000:  # false for NaN, too
        raise ConfigError(
            f"{INTERVAL_VARIABLE} must be milliseconds, above 0 and at most "
            f"{MAX_VISIBILITY_SECONDS * 1000}, not {text[:40]!r}"
        )
    return milliseconds / 1000


def visibility_timeout_of(queue_url: str, client: Any = None) -> int:
    """Return the queue's own visibility timeout. Needs `sqs:GetQueueAttributes`.

    Raises ConfigError or QueueUnavailable, whose one line names the remedy.
    """
    client = (
        make_retrying_client("sqs", **_locate_client(queue_url)) if client is None else client
    )
    try:
        response = client.get_queue_attributes(
            QueueUrl=queue_url, AttributeNames=["VisibilityTimeout"]
        )
    except Exception as error:  # translate_error has the only table of error codes
        raise translate_error(queue_name_from_url(queue_url), error) from error
    return int(response["Attributes"]["VisibilityTimeout"])


def make_heartbeat_client(queue_url: str, options: HeartbeatOptions) -> Any:
    """Make a client whose calls fail within half an interval.

    They must be that short because `stop` waits for a call in progress.
    """
    seconds = min(options.visibility_timeout_sec, 4 * options.interval_sec)
    return make_fail_fast_client("sqs", seconds, **_locate_client(queue_url))


def _locate_client(queue_url: str) -> dict[str, str | None]:
    """Return the queue's region and endpoint, because a function may run in another region."""
    queue_address = address.parse_address(queue_url)
    return {"region_name": queue_address.region, "endpoint_url": queue_address.endpoint}


def queue_name_from_url(queue_url: str) -> str:
    """Return the last part of the queue's URL."""
    return queue_url.rstrip("/").rpartition("/")[2]


def _check_timeout(seconds: Any) -> None:
    _check_number("visibility_timeout_sec", seconds)
    if seconds != int(seconds) or not 0 < seconds <= MAX_VISIBILITY_SECONDS:
        raise ValueError(
            "visibility_timeout_sec must be whole seconds, above 0 and at most "
            f"{MAX_VISIBILITY_SECONDS} (12 hours, SQS's limit), not {seconds}"
        )


def _check_positive(name: str, seconds: Any) -> None:
    _check_number(name, seconds)
    if seconds <= 0:
        raise ValueError(f"{name} must be above 0, not {seconds}")


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{name} must be a number of seconds, not {value!r}")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more, not {value!r}")
