"""Conversations in memory: the promises of the port, on plain values.

Contract tests compare other stores with it, and simulations run conversations on it.
"""

from collections import defaultdict
from collections.abc import Iterator

from holdfast.conversations.model import ConversationKey, WaitingConversation
from holdfast.conversations.row_store import RowConversationStore
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.testing.memory_rows import MemoryRows

_KEYS = {
    "conversations": ("conversation_id", "primary_channel"),
    "messages": ("conversation_no", "seq"),
    "stage": ("conversation_id", "message_sid"),
    "windows": ("conversation_id",),
    "processed": ("conversation_id", "primary_channel", "message_sid"),
    "parked": ("parked_id",),
}


class ConversationMemory(MemoryRows):
    """The stored rows. Several MemoryConversations may share one."""

    def __init__(self) -> None:
        super().__init__(_KEYS, {"conversations": "conversation_no"})


class MemoryConversations(RowConversationStore):
    """A store that exists as long as its memory. It is safe for threads.

    Expired rows stay until `forget_expired` is called, like in a table that removes them at
    any later time.
    """

    def __init__(
        self, memory: ConversationMemory | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(ConversationMemory() if memory is None else memory, clock)

    def forget_expired(self, now: float) -> None:
        """Remove every expired row, as a table does sooner or later."""
        with self._database.begin_write() as rows:
            for table in ("processed", "stage", "windows"):
                rows.delete(table, [{"expires_at <": now}])

    def _delete_expired(self, rows: MemoryRows, now: float) -> None:
        pass

    def waiting(self) -> Iterator[WaitingConversation]:
        """Return every conversation that has staged rows."""
        times: defaultdict[ConversationKey, list[float]] = defaultdict(list)
        with self._database.begin_read() as rows:
            for row in rows.select("stage", {}):
                key = ConversationKey(row["primary_channel"], row["conversation_id"])
                times[key].append(row["staged_at"])
        return iter([WaitingConversation(key, len(at), min(at)) for key, at in times.items()])
