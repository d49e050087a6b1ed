"""The search behind `list --where` and `list --error`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.errors import UsageError

if TYPE_CHECKING:
    from holdfast.queue.manager import (
        MessageInfo,
        MessageState,
        QueueManager,
        QueueStats,
    )
    from holdfast.queue.message import AnyMessage


def parse_fields(conditions: Sequence[str]) -> dict[str, str]:
    """Return the value of each field. Raises UsageError for a condition of another form."""
    fields: dict[str, str] = {}
    for condition in conditions:
        field, sign, value = condition.partition("=")
        if not field or not sign:
            raise UsageError(
                f"--where must be FIELD=VALUE, as in domain=example.com; got {condition!r}"
            )
        if fields.setdefault(field, value) != value:
            raise UsageError(f"--where {field!r} is given twice, with different values")
    return fields


def search_messages(
    manager: "QueueManager[AnyMessage]",
    state: "MessageState | None",
    where: dict[str, str],
    error: str | None,
    limit: int,
) -> "list[MessageInfo]":
    """Return the messages that a search yields. A long one shows its progress."""
    from holdfast.cli.live_view import ProgressMeter

    with ProgressMeter("searching") as meter:
        messages = manager.search(
            state, where=where, error=error, limit=limit, on_progress=meter.advance
        )
        # Not before `search`, because a queue that cannot search should not be counted.
        meter.total = _count_messages(manager.stats(), state)
        return list(messages)


def _count_messages(stats: "QueueStats", state: "MessageState | None") -> int:
    counts = {
        "pending": stats.ready + stats.delayed,
        "leased": stats.leased,
        "completed": stats.completed or 0,
        "failed": stats.failed,
    }
    return counts[state.value] if state is not None else sum(counts.values())
