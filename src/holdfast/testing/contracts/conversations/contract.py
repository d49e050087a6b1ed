"""What every store of conversations must pass. Subclass ConversationStoreContract as Test…,
and give it one fixture."""

from typing import ClassVar

import pytest

from holdfast.conversations.ports import ConversationStore
from holdfast.testing import ManualClock
from holdfast.testing.contracts.conversations.concurrency import ConversationConcurrencyPromises
from holdfast.testing.contracts.conversations.finishing import FinishPromises, OutboxPromises
from holdfast.testing.contracts.conversations.locking import LockPromises
from holdfast.testing.contracts.conversations.machine import run_machine
from holdfast.testing.contracts.conversations.operators import (
    ConversationListingPromises,
    HistoryPromises,
    OperatorPromises,
)
from holdfast.testing.contracts.conversations.parking import ParkingPromises
from holdfast.testing.contracts.conversations.staging import CreationPromises, StagingPromises
from holdfast.testing.contracts.conversations.support import OpenStore
from holdfast.testing.contracts.conversations.windows import WindowPromises


class SequentialConversationPromises(
    CreationPromises,
    StagingPromises,
    WindowPromises,
    LockPromises,
    OutboxPromises,
    FinishPromises,
    ParkingPromises,
    HistoryPromises,
    ConversationListingPromises,
    OperatorPromises,
):
    """All promises but those of crowds, for stores in tests that are not thread-safe."""

    examples: ClassVar[int] = 25
    """How many lives of two conversations are tried against the model."""
    steps: ClassVar[int] = 30
    """How long such a life is."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """`open_store(clock)`: the store of this test, which is empty at first, opened once
        more. The fixture closes what it opened."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_store: OpenStore, clock: ManualClock) -> ConversationStore:
        return open_store(clock)

    def test_any_order_of_calls_does_what_the_model_says(
        self, open_store: OpenStore, clock: ManualClock
    ) -> None:
        """I-MS-3, I-MS-6."""
        run_machine(open_store, clock, self.examples, self.steps)


class ConversationStoreContract(
    SequentialConversationPromises, ConversationConcurrencyPromises
):
    """All of it."""
