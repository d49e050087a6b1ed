"""The tests that every job store must pass.

Subclass JobStoreContract as Test…, and override its fixture `open_repository`.
"""

from typing import ClassVar

import pytest

from contracts.jobs.concurrency import JobConcurrencyPromises
from contracts.jobs.counting import CountingPromises, SealPromises
from contracts.jobs.machine import run_machine
from contracts.jobs.outcomes import CallbackPromises, OutcomePromises
from contracts.jobs.storing import ListingPromises, LookupPromises, SavePromises
from contracts.jobs.support import OpenRepository
from contracts.jobs.tokens import TokenPromises
from contracts.jobs.transitions import StatusMovePromises, TransitionPromises
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock


class JobStoreContract(
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
    JobConcurrencyPromises,
):
    """All promises of a job store."""

    examples: ClassVar[int] = 30
    """How many sequences of calls are compared with the model."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock of the store."""
        return ManualClock()

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        """Return a function that opens this test's store, which is empty at first.

        Every call opens the same store once more. The fixture closes what it opened.
        """
        raise NotImplementedError

    @pytest.fixture
    def repository(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> JobStateRepository:
        """Return the store, opened once."""
        return open_repository(clock)

    def test_any_order_of_calls_does_what_the_model_says(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> None:
        """Counters match rows, and each call does what the model does."""
        run_machine(open_repository, clock, self.examples)
