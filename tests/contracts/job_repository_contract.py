"""What every job store must pass. Subclass JobRepositoryContract as Test…, and give it one
fixture."""

from typing import ClassVar

import pytest
from job_promises.callbacks import Callbacks
from job_promises.counting import Counting
from job_promises.crowds import JobCrowds
from job_promises.finding import Finding
from job_promises.kit import OpenRepository
from job_promises.listing import Listing
from job_promises.machine import run_machine
from job_promises.outcomes import Outcomes
from job_promises.saving import Saving
from job_promises.sealing import Sealing
from job_promises.tokens import Tokens
from job_promises.transitions import Moves, Transitions

from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock


class OneCaller(
    Saving,
    Moves,
    Transitions,
    Counting,
    Sealing,
    Listing,
    Outcomes,
    Callbacks,
    Tokens,
    Finding,
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


class JobRepositoryContract(OneCaller, JobCrowds):
    """All of it."""
