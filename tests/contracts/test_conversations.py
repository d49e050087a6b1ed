"""The model that stores of conversations are compared with keeps the contract itself, and
so does the SQLite store."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest
from conversation_promises.contract import ConversationStoreContract
from conversation_promises.kit import OpenStore

from holdfast.adapters.local.sqlite import SQLiteConversations
from holdfast.testing.memory_conversations import ConversationMemory, MemoryConversations


class TestModelOfConversations(ConversationStoreContract):
    examples: ClassVar[int] = 5

    @pytest.fixture
    def open_store(self) -> OpenStore:
        memory = ConversationMemory()
        return lambda clock: MemoryConversations(memory, clock=clock)


class TestSQLiteConversations(ConversationStoreContract):
    @pytest.fixture
    def open_store(self, fast_path: Path) -> Iterator[OpenStore]:
        with ExitStack() as opened:
            yield lambda clock: opened.enter_context(
                SQLiteConversations(fast_path / "conversations.db", clock=clock)
            )
