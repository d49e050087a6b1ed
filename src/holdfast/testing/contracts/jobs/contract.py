"""What every job store must pass. Subclass JobStoreContract as Test…, and give it one
fixture."""

from typing import ClassVar

import pytest

from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.callbacks import CallbackPromises
from holdfast.testing.contracts.jobs.concurrency import JobConcurrencyPromises
from holdfast.testing.contracts.jobs.counting import CountingPromises
from holdfast.testing.contracts.jobs.listing import ListingPromises
from holdfast.testing.contracts.jobs.lookup import LookupPromises
from holdfast.testing.contracts.jobs.machine import run_machine
from holdfast.testing.contracts.jobs.outcomes import OutcomePromises
from holdfast.testing.contracts.jobs.saving import SavePromises
from holdfast.testing.contracts.jobs.sealing import SealPromises
from holdfast.testing.contracts.jobs.support import OpenRepository
from holdfast.testing.contracts.jobs.tokens import TokenPromises
from holdfast.testing.contracts.jobs.transitions import StatusMovePromises, TransitionPromises


class SequentialJobPromises(
    SavePromises,
    StatusMovePromises,
    TransitionPromises,
    CountingPromises,
    SealPromises,
    ListingPromises,
    OutcomePromises,
    CallbackPromises,
    TokenPromises,
    LookupPromises,
):
    """All promises but those of crowds, for stores in tests that are not thread-safe."""

    examples: ClassVar[int] = 30
    """How many lives of a job are tried against the model."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        """`open_repository(clock, keep_seconds=None)`: the store of this test, which is
        empty at first, opened once more. The fixture closes what it opened."""
        raise NotImplementedError

    @pytest.fixture
    def repository(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> JobStateRepository:
        return open_repository(clock)

    def test_any_order_of_calls_does_what_the_model_says(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> None:
        """I-JB-1…4, LO-03."""
        run_machine(open_repository, clock, self.examples)


class JobStoreContract(SequentialJobPromises, JobConcurrencyPromises):
    """All of it."""
