"""Time as a parameter. Nothing else in Holdfast reads a clock or sleeps."""

import time
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import Protocol


class Clock(Protocol):
    """A source of time that tests can replace."""

    def time(self) -> float:
        """Return the seconds since the epoch.

        This clock may jump, so use it for timestamps and never to judge a lease.
        """

    def monotonic(self) -> float:
        """Return seconds that only grow and that also count while the machine is suspended."""

    def wait(self, event: Event, seconds: float | None) -> bool:
        """Wait until `event` is set (returns True) or `seconds` have passed (False)."""

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""


# CLOCK_MONOTONIC stops while a laptop is suspended, but leases keep running out. A system
# without CLOCK_BOOTTIME (macOS) has a monotonic clock that counts suspended time already.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clocks of the machine.

    `time` and `monotonic` are the functions of the C library themselves, because they are
    read several times for each message. `monotonic` counts suspended time.
    """

    monotonic = staticmethod(partial(time.clock_gettime, _BOOTTIME))
    time = staticmethod(time.time)

    def wait(self, event: Event, seconds: float | None) -> bool:
        """Wait until `event` is set (returns True) or `seconds` have passed (False)."""
        return event.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()

_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def to_utc(seconds: float) -> datetime:
    """Convert an epoch time to a UTC datetime.

    A time outside the calendar becomes the calendar's first or last moment.
    """
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return _LAST if seconds > 0 else _FIRST


def utc_now() -> datetime:
    """Return the current time in UTC.

    This is not a partial of `datetime.now`, because pydantic asks for the signature of a
    default, and parsing that of a C function takes milliseconds of every cold start.
    """
    return datetime.now(UTC)
