"""The conversation contract for SQLite stores, in memory and in a file."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from contracts.conversations.contract import ConversationStoreContract
from contracts.conversations.support import (
    KEY,
    NOW,
    OpenStore,
    acquire_grant,
    create_conversation,
    list_staged_sids,
    make_fragment,
    make_turn,
    make_window,
)
from holdfast.chat.sqlite_conversations import (
    MemoryConversations,
    SQLiteConversations,
)
from support.chat.simulation import ExpiringConversations


class TestMemoryConversations(ConversationStoreContract):
    examples: ClassVar[int] = 5

    @pytest.fixture
    def open_store(self) -> OpenStore:
        first = MemoryConversations()
        return lambda clock: MemoryConversations(first, clock=clock)


def test_the_simulated_table_keeps_expired_rows_until_forget_expired_is_called() -> None:
    """A table may remove expired rows sooner or much later."""
    store = ExpiringConversations()
    create_conversation(store)
    store.finish(acquire_grant(store), make_turn("m1"), now=NOW, remember_until=NOW + 10.0)
    store.stage(make_fragment("m2"), expires_at=NOW + 20.0)
    store.open_window(make_window(expires_at=NOW + 30.0), now=NOW, untriggered_before=NOW)

    def left() -> list[bool]:
        results = (
            store.processed(KEY, ["m1"]),
            list_staged_sids(store),
            store.window(KEY.conversation_id),
        )
        return [bool(result) for result in results]

    store.forget_expired(NOW + 10.0)
    assert left() == [True, True, True]
    store.forget_expired(NOW + 10.5)
    assert left() == [False, True, True]
    store.forget_expired(NOW + 20.5)
    assert left() == [False, False, True]
    assert list(store.waiting()) == []
    store.forget_expired(NOW + 30.5)
    assert left() == [False, False, False]
    assert len(store.history(KEY)) == 2


class TestSQLiteConversations(ConversationStoreContract):
    @pytest.fixture
    def open_store(self, fast_path: Path) -> Iterator[OpenStore]:
        with ExitStack() as opened:
            yield lambda clock: opened.enter_context(
                SQLiteConversations(fast_path / "conversations.db", clock=clock)
            )
