"""The deadlines of an invocation, planned at its start.

entry ─── records start ─── │ ─── ctx.stopping ─── │ ─── cut off ─── │ return ─── killed
                       start_until              stop_at           cut_at  return_by   (end)
                       ◀ timeout ▶ ◀──────────────── reserve ─────────────────────▶
"""

from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class InvocationDeadlines:
    """The deadlines of one invocation, as monotonic times."""

    start_until: float
    """From here on no record is started, because its time would not suffice."""
    stop_at: float
    """Handlers are asked to stop."""
    cut_at: float
    """Handlers that still run lose their leases, because the function must return."""
    return_by: float
    """The function returns without waiting for threads that still run."""


def plan_deadlines(
    now: float, left_seconds: float, reserve_seconds: float, timeout_seconds: float | None
) -> InvocationDeadlines:
    """Return the deadlines of an invocation that has this much time left."""
    end = now + left_seconds
    stop_at = end - reserve_seconds
    return InvocationDeadlines(
        start_until=stop_at - (timeout_seconds or 0.0),
        stop_at=stop_at,
        cut_at=end - reserve_seconds / 2,
        return_by=end - reserve_seconds / 4,
    )


def seconds_left(context: Any) -> float:
    """Return the time left of the invocation, or infinity without a Lambda context."""
    get_remaining = getattr(context, "get_remaining_time_in_millis", None)
    return inf if get_remaining is None else float(get_remaining()) / 1000
