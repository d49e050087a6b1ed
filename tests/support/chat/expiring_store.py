"""A conversation store whose expired rows stay until a test removes them, as in DynamoDB."""

from holdfast.store.sqlite.rows import RowConnection
from holdfast.testing import MemoryConversations


class ExpiringConversations(MemoryConversations):
    """Conversations in memory, whose rows expire when the test says so."""

    def forget_expired(self, now: float) -> None:
        """Remove every expired row, as a table does sooner or later."""
        with self._database.begin_write() as rows:
            for table in ("processed", "stage", "windows"):
                rows.delete(table, [{"expires_at <": now}])

    def _delete_expired(self, rows: RowConnection, now: float) -> None:
        pass
