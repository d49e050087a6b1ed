"""What every queue must pass. Subclass QueueContract as Test…, and give it three fixtures."""

from collections.abc import Callable

import pytest
from queue_promises.bad_input import BadInput
from queue_promises.checkpoints import Checkpoints
from queue_promises.crowds import Crowds
from queue_promises.dead_letters import DeadLetters
from queue_promises.dedupe import Dedupe
from queue_promises.delivery import Delivery
from queue_promises.for_people import ForPeople
from queue_promises.kit import AnyQueue, Inject, MakeQueue, seen
from queue_promises.leasing import Leasing
from queue_promises.schemas import Schemas
from queue_promises.settling import Settling
from queue_promises.waiting import Waiting
from queue_promises.zombies import Zombies

from holdfast.core.queue.manager import QueueManager
from holdfast.testing import ManualClock


class QueueContract(
    Delivery,
    Waiting,
    Leasing,
    Settling,
    Zombies,
    DeadLetters,
    Dedupe,
    BadInput,
    Schemas,
    Checkpoints,
    ForPeople,
    Crowds,
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
