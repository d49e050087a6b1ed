"""The contract that every conversation store must pass.

Subclass ConversationStoreContract as Test… and define the fixture `open_store`.
"""

from typing import ClassVar

import pytest

from contracts.conversations.concurrency import ConversationConcurrencyPromises
from contracts.conversations.finishing import FinishPromises, OutboxPromises
from contracts.conversations.locking import LockPromises
from contracts.conversations.machine import run_machine
from contracts.conversations.operators import (
    ConversationListingPromises,
    HistoryPromises,
    OperatorPromises,
)
from contracts.conversations.parking import ParkingPromises
from contracts.conversations.staging import CreationPromises, StagingPromises
from contracts.conversations.support import OpenStore
from contracts.conversations.windows import WindowPromises
from holdfast.chat.ports import ConversationStore
from holdfast.testing import ManualClock


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
    """All promises except those under concurrency, for stores that are not thread-safe."""

    examples: ClassVar[int] = 25
    """How many random sequences of calls are compared with the model."""
    steps: ClassVar[int] = 30
    """How many calls such a sequence has."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock of the test."""
        return ManualClock()

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Return a function that opens the store of this test once more.

        The store is empty at first. The fixture closes every store it opened.
        """
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_store: OpenStore, clock: ManualClock) -> ConversationStore:
        """Return an empty store."""
        return open_store(clock)

    def test_any_order_of_calls_does_what_the_model_says(
        self, open_store: OpenStore, clock: ManualClock
    ) -> None:
        """(I-MS-3, I-MS-6)"""
        run_machine(open_store, clock, self.examples, self.steps)


class ConversationStoreContract(
    SequentialConversationPromises, ConversationConcurrencyPromises
):
    """All promises, including those under concurrency."""
