"""An invocation's end, planned from its beginning.

entry ─── records start ─── │ ─── ctx.stopping ─── │ ─── cut off ─── │ return ─── killed
                       start_until              stop_at           cut_at  return_by   (end)
                       ◀ timeout ▶ ◀──────────────── reserve ─────────────────────▶
"""

from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class InvocationDeadlines:
    """Monotonic times."""

    start_until: float
    """No record is started from here on: it would not have its time."""
    stop_at: float
    """Handlers are told to come to an end."""
    cut_at: float
    """Whoever still works loses its lease: the answer must go out."""
    return_by: float
    """Not even a thread that does not end is waited for any longer."""


def plan_deadlines(
    now: float, left_seconds: float, reserve_seconds: float, timeout_seconds: float | None
) -> InvocationDeadlines:
    end = now + left_seconds
    stop_at = end - reserve_seconds
    return InvocationDeadlines(
        start_until=stop_at - (timeout_seconds or 0.0),
        stop_at=stop_at,
        cut_at=end - reserve_seconds / 2,
        return_by=end - reserve_seconds / 4,
    )


def seconds_left(context: Any) -> float:
    """Of the invocation; without a Lambda context there is no end."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    return inf if ask is None else float(ask()) / 1000
