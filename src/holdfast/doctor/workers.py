"""The check that a worker polls a local queue that has work."""

from collections.abc import Iterator

from holdfast.doctor.checks import CheckResult, ok, warn
from holdfast.lease.clock import to_utc
from holdfast.queue.manager import QueueStats
from holdfast.text import format_count

_QUIET_SECONDS = 60.0  # workers mark themselves as seen every ten seconds


def judge_workers(stats: QueueStats, seen: float | None, now: float) -> Iterator[CheckResult]:
    """Yield a warning if there is work, but no worker was seen for a while.

    `seen` is the time when a worker was last seen, on the same clock as `now`.
    """
    is_quiet = seen is None or now - seen > _QUIET_SECONDS
    since = f"last seen {to_utc(seen):%Y-%m-%d %H:%M:%S} UTC" if seen else "none seen yet"
    if (stats.expired or stats.ready) and is_quiet:
        yield warn(
            f"{format_count(stats.ready, 'message')} waiting and "
            f"{format_count(stats.expired, 'expired lease')}, but no worker polls ({since})",
            "start one: `holdfast work QUEUE MODULE:HANDLER`",
        )
    else:
        yield ok(f"{format_count(stats.leased, 'message')} held, {stats.ready:,} waiting")
