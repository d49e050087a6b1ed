"""What every queue must pass. Subclass QueueContract as Test…, and give it three fixtures."""

from collections.abc import Callable

import pytest

from holdfast.core.queue.manager import QueueManager
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.bad_input import BadInputPromises
from holdfast.testing.contracts.queue.checkpoints import CheckpointPromises
from holdfast.testing.contracts.queue.concurrency import QueueConcurrencyPromises
from holdfast.testing.contracts.queue.dead_letters import DeadLetterPromises
from holdfast.testing.contracts.queue.dedupe import DedupePromises
from holdfast.testing.contracts.queue.delivery import DeliveryPromises
from holdfast.testing.contracts.queue.inspection import InspectionPromises
from holdfast.testing.contracts.queue.leasing import LeasePromises
from holdfast.testing.contracts.queue.schemas import SchemaPromises
from holdfast.testing.contracts.queue.settling import SettlePromises
from holdfast.testing.contracts.queue.stale_holders import StaleHolderPromises
from holdfast.testing.contracts.queue.support import AnyQueue, Inject, MakeQueue, seen
from holdfast.testing.contracts.queue.waiting import DelayPromises


class QueueContract(
    DeliveryPromises,
    DelayPromises,
    LeasePromises,
    SettlePromises,
    StaleHolderPromises,
    DeadLetterPromises,
    DedupePromises,
    BadInputPromises,
    SchemaPromises,
    CheckpointPromises,
    InspectionPromises,
    QueueConcurrencyPromises,
):
    lacks: frozenset[str] = frozenset()
    """Capabilities this kind of queue cannot have. Tests of those, and only those, skip."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock of the queue itself, and of its workers unless they bring their own."""
        return ManualClock()

    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        """Open the test's queue as one more worker: every call sees the same messages.

        Settings are those all queues have: model, lease_seconds, max_attempts, backoff,
        dedupe, events, and clock, which is the worker's own and may stand still while
        time passes for the queue.
        """
        raise NotImplementedError

    @pytest.fixture
    def make_other_queue(self, clock: ManualClock) -> MakeQueue:
        """Open another queue of this kind, with messages of its own."""
        raise NotImplementedError

    @pytest.fixture
    def inject(self) -> Inject:
        """Put raw bytes in the queue, ready to be claimed."""
        raise NotImplementedError

    @pytest.fixture
    def contents(self) -> Callable[[AnyQueue], object]:
        """All there is, to compare before and after. Override where bytes can be seen."""
        return seen

    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> AnyQueue:
        return make_queue()

    def test_it_has_the_capabilities_it_is_tested_for(self, queue: AnyQueue) -> None:
        assert queue.capabilities == QueueManager.capabilities - self.lacks
