"""The queue, job store and conversation store in a SQLite file, for one machine's processes."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.local.sqlite.conversations import (
        SQLiteConversations as SQLiteConversations,
    )
    from holdfast.adapters.local.sqlite.jobs import SQLiteJobs as SQLiteJobs
    from holdfast.adapters.local.sqlite.queue.queue import SQLiteQueue as SQLiteQueue

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "adapters.local.sqlite.conversations": "SQLiteConversations",
        "adapters.local.sqlite.jobs": "SQLiteJobs",
        "adapters.local.sqlite.queue.queue": "SQLiteQueue",
    },
)
