"""Job and conversation stores in one SQLite file, for all processes of one machine."""

from holdfast.adapters.local.sqlite.conversations import SQLiteConversations
from holdfast.adapters.local.sqlite.jobs import SQLiteJobs

__all__ = ["SQLiteConversations", "SQLiteJobs"]
