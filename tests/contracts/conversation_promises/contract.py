"""What every store of conversations must pass. Subclass ConversationStoreContract as Test…,
and give it one fixture."""

from typing import ClassVar

import pytest

from conversation_promises.crowds import Crowds
from conversation_promises.finishing import Finishing, Noting
from conversation_promises.kit import OpenStore
from conversation_promises.locking import Locking
from conversation_promises.machine import run_machine
from conversation_promises.parking import Parking
from conversation_promises.people import Histories, Listings, Persons
from conversation_promises.staging import Creating, Staging
from conversation_promises.windows import Windows
from holdfast.conversations.ports import ConversationStore
from holdfast.testing import ManualClock


class OneCaller(
    Creating,
    Staging,
    Windows,
    Locking,
    Noting,
    Finishing,
    Parking,
    Histories,
    Listings,
    Persons,
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


class ConversationStoreContract(OneCaller, Crowds):
    """All of it."""
