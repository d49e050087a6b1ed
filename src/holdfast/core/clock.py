"""Time as a parameter. Nothing else in Holdfast reads a clock or sleeps."""

import time
from datetime import UTC, datetime
from threading import Event
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def time(self) -> float:
        """Seconds since the epoch. May jump: use it for people, never for trust."""

    def monotonic(self) -> float:
        """Seconds that only grow, and that count while the machine is suspended."""

    def wait(self, event: Event, seconds: float | None) -> bool:
        """Wait until `event` is set (True) or `seconds` have passed (False)."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""


# CLOCK_MONOTONIC stands still while a laptop sleeps; leases do not. Where the
# system has no CLOCK_BOOTTIME (macOS), its monotonic clock counts suspend already.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's own clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def wait(self, event: Event, seconds: float | None) -> bool:
        return event.wait(seconds)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()

_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def utc(seconds: float) -> datetime:
    """An epoch time as people read it; beyond the calendar, its first or last moment."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return _LAST if seconds > 0 else _FIRST


def utc_now() -> datetime:
    return utc(SYSTEM_CLOCK.time())
