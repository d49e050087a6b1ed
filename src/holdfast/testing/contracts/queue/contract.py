"""The tests that every queue must pass.

Subclass QueueContract as Test…, and override the fixtures make_queue, make_other_queue and
inject.
"""

from collections.abc import Callable

import pytest

from holdfast.queue.manager import QueueManager
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.bad_input import BadInputPromises, SchemaPromises
from holdfast.testing.contracts.queue.cancelling import CancelPromises
from holdfast.testing.contracts.queue.checkpoints import CheckpointPromises, ResultPromises
from holdfast.testing.contracts.queue.concurrency import QueueConcurrencyPromises
from holdfast.testing.contracts.queue.dead_letters import DeadLetterPromises
from holdfast.testing.contracts.queue.delivery import (
    DedupePromises,
    DelayPromises,
    DeliveryPromises,
)
from holdfast.testing.contracts.queue.inspection import InspectionPromises
from holdfast.testing.contracts.queue.leasing import LeasePromises, StaleHolderPromises
from holdfast.testing.contracts.queue.searching import SearchPromises
from holdfast.testing.contracts.queue.settling import SettlePromises
from holdfast.testing.contracts.queue.support import AnyQueue, Inject, MakeQueue, take_snapshot


class QueueContract(
    DeliveryPromises,
    DelayPromises,
    LeasePromises,
    SettlePromises,
    StaleHolderPromises,
    DeadLetterPromises,
    CancelPromises,
    DedupePromises,
    BadInputPromises,
    SchemaPromises,
    CheckpointPromises,
    ResultPromises,
    InspectionPromises,
    SearchPromises,
    QueueConcurrencyPromises,
):
    """All promises of a queue, as tests."""

    lacks: frozenset[str] = frozenset()
    """Capabilities that this kind of queue cannot have. Only their tests are skipped."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock of the queue itself, and of its workers unless they have their own."""
        return ManualClock()

    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        """Open the test's queue as one more worker; all calls share the same messages.

        The settings are those that all queues have: model, lease_seconds, max_attempts,
        backoff, dedupe, events and clock. The clock is the worker's own, and may stand still
        while time passes for the queue.
        """
        raise NotImplementedError

    @pytest.fixture
    def make_other_queue(self, clock: ManualClock) -> MakeQueue:
        """Open another queue of this kind, with messages of its own."""
        raise NotImplementedError

    @pytest.fixture
    def inject(self) -> Inject:
        """Put raw bytes into the queue, ready to be claimed."""
        raise NotImplementedError

    @pytest.fixture
    def contents(self) -> Callable[[AnyQueue], object]:
        """Return the queue's contents, to compare before and after.

        Override it for a queue whose stored bytes can be read.
        """
        return take_snapshot

    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> AnyQueue:
        """The test's queue with default settings."""
        return make_queue()

    def test_it_has_the_capabilities_it_is_tested_for(self, queue: AnyQueue) -> None:
        assert queue.capabilities == QueueManager.capabilities - self.lacks
