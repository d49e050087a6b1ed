"""The tests that every job store must pass.

Subclass JobStoreContract as Test…, and override its fixture `open_repository`.
"""

from typing import ClassVar

from contracts.jobs.concurrency import JobConcurrencyPromises
from contracts.jobs.counting import CountingPromises, SealPromises
from contracts.jobs.machine import run_machine
from contracts.jobs.outcomes import CallbackPromises, OutcomePromises
from contracts.jobs.storing import ListingPromises, LookupPromises, SavePromises
from contracts.jobs.support import OpenRepository
from contracts.jobs.tokens import TokenPromises
from contracts.jobs.transitions import StatusMovePromises, TransitionPromises


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

    def test_any_order_of_calls_does_what_the_model_says(
        self, open_repository: OpenRepository
    ) -> None:
        """Counters match rows, and each call does what the model does."""
        run_machine(open_repository, self.clock, self.examples)
