"""What a heartbeat is asked to do: its terms, checked, and where they may come from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from holdfast.adapters.aws.clients import patient, prompt
from holdfast.adapters.aws.errors import explained
from holdfast.adapters.aws.sqs import address
from holdfast.core.errors import ConfigError

MAX_SECONDS = 43_200
"""SQS hides a message no longer than this, counted from its receive."""

INTERVAL_VARIABLE = "SQS_HEARTBEAT_INTERVAL_MS"

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    """Raises ValueError for what cannot work, naming the parameter."""

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
        _check_above_0("interval_sec", self.interval_sec)
        if self.interval_sec >= self.visibility_timeout_sec:
            raise ValueError(
                f"visibility_timeout_sec ({self.visibility_timeout_sec}) must be greater "
                f"than interval_sec ({self.interval_sec}): the message would reappear "
                "before each beat"
            )
        for name in ("join_timeout_sec", "stall_timeout_sec", "max_duration_sec"):
            if (seconds := getattr(self, name)) is not None:
                _check_above_0(name, seconds)
        if self.initial_visibility_sec is not None:
            _check_number("initial_visibility_sec", self.initial_visibility_sec)
        if self.max_transient_failures is not None:
            _check_count("max_transient_failures", self.max_transient_failures)

    @property
    def long_interval(self) -> bool:
        """One beat that fails leaves less time than it took to come to it."""
        return self.interval_sec > self.visibility_timeout_sec / 2


def check_text(name: str, text: Any) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} must be a text that is not empty")


def check_received_at(received_at: float | None, now: float) -> None:
    """`now` in epoch seconds. SQS speaks of milliseconds, which are far ahead of it."""
    if received_at is None:
        return
    _check_number("received_at", received_at)
    if not 0 < received_at < now + _DAY_SECONDS:
        raise ValueError(
            f"received_at must be the receive's time in seconds since 1970, not {received_at}"
            " (SQS tells it in milliseconds)"
        )


def interval_from_env(environ: Mapping[str, str] = os.environ) -> float | None:
    """The interval in seconds that SQS_HEARTBEAT_INTERVAL_MS asks for; None when unset."""
    text = environ.get(INTERVAL_VARIABLE, "").strip()
    if not text:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= MAX_SECONDS * 1000:  # false for NaN, too
        raise ConfigError(
            f"{INTERVAL_VARIABLE} must be milliseconds, above 0 and at most "
            f"{MAX_SECONDS * 1000}, not {text[:40]!r}"
        )
    return milliseconds / 1000


def visibility_timeout_of(queue_url: str, client: Any = None) -> int:
    """The queue's own visibility timeout. Needs `sqs:GetQueueAttributes`.

    Raises ConfigError or QueueUnavailable, with the way out in one line.
    """
    client = patient("sqs", **_where(queue_url)) if client is None else client
    try:
        answer = client.get_queue_attributes(
            QueueUrl=queue_url, AttributeNames=["VisibilityTimeout"]
        )
    except Exception as error:  # translated by the one table
        raise explained(queue_name(queue_url), error) from error
    return int(answer["Attributes"]["VisibilityTimeout"])


def prompt_client(queue_url: str, terms: HeartbeatOptions) -> Any:
    """Its calls give up within half an interval: `stop` waits for one under way."""
    seconds = min(terms.visibility_timeout_sec, 4 * terms.interval_sec)
    return prompt("sqs", seconds, **_where(queue_url))


def _where(queue_url: str) -> dict[str, str | None]:
    """The function may run in another region than its queue."""
    place = address.parse(queue_url)
    return {"region_name": place.region, "endpoint_url": place.endpoint}


def queue_name(queue_url: str) -> str:
    return queue_url.rstrip("/").rpartition("/")[2]


def _check_timeout(seconds: Any) -> None:
    _check_number("visibility_timeout_sec", seconds)
    if seconds != int(seconds) or not 0 < seconds <= MAX_SECONDS:
        raise ValueError(
            "visibility_timeout_sec must be whole seconds, above 0 and at most "
            f"{MAX_SECONDS} (12 hours, SQS's limit), not {seconds}"
        )


def _check_above_0(name: str, seconds: Any) -> None:
    _check_number(name, seconds)
    if seconds <= 0:
        raise ValueError(f"{name} must be above 0, not {seconds}")


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{name} must be a number of seconds, not {value!r}")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more, not {value!r}")
