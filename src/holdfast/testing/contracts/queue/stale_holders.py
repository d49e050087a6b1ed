"""StaleHolderPromises: a worker that lost its lease and does not know it changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.errors import LeaseLost
from holdfast.lease.lease import LeaseState
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    SETTLE,
    VERBS,
    AnyQueue,
    MakeQueue,
    assert_completed,
    make_frozen_clock,
    poll_one,
    push_and_poll,
    require_capabilities,
)

Contents = Callable[[AnyQueue], object]


def _redrive_and_poll(queue: AnyQueue, message: AnyMessage) -> Any:
    """Reset the attempts, so that they equal those of the stale holder."""
    queue.dead_letter(message, "no use")
    queue.redrive()
    message = poll_one(queue)
    assert message.attempts == 1
    return message


# What the successor does. Each returns the message that it holds afterwards, if any.
MEANWHILE: dict[str, Callable[[AnyQueue, Any], Any]] = {
    **SETTLE,
    "hold": lambda queue, message: message,
    "redrive": _redrive_and_poll,
}


@dataclass(frozen=True)
class StaleHolder:
    """A worker that lost its lease and does not know it."""

    queue: AnyQueue
    message: AnyMessage

    def assert_fails(self, verb: str) -> None:
        """Assert that the verb raises LeaseLost and that the lease is lost afterwards."""
        knows_itself = self.queue.clock.monotonic() >= get_lease(self.message).deadline
        if verb == "save_checkpoint" and not knows_itself:
            require_capabilities(self.queue, "checkpoint")
        with pytest.raises(LeaseLost):
            VERBS[verb](self.queue, self.message)
        assert get_lease(self.message).state is LeaseState.LOST
        assert get_lease(self.message).lost.is_set()


class StaleHolderPromises:
    """Promises about workers that lost their lease."""

    @pytest.fixture(params=["its clock shows it", "only the queue can show it"])
    def stale_holder(
        self, request: pytest.FixtureRequest, make_queue: MakeQueue, clock: ManualClock
    ) -> StaleHolder:
        """A worker that held "a" and slept past its deadline.

        The second variant is a worker that was frozen between reading its clock and making
        its call, so that only the fence can stop it.
        """
        if request.param == "only the queue can show it":
            require_capabilities(make_queue(), "fence")
        own = clock if request.param == "its clock shows it" else make_frozen_clock(clock)
        queue = make_queue(clock=own)
        queue.push(AnyMessage(id="a"))
        stale_holder = StaleHolder(queue, poll_one(queue))
        clock.advance(LEASE + 1)
        return stale_holder

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("meanwhile", MEANWHILE)
    def test_a_stale_holder_changes_nothing_after_another_worker_took_over(
        self,
        stale_holder: StaleHolder,
        verb: str,
        meanwhile: str,
        make_queue: MakeQueue,
        contents: Contents,
    ) -> None:
        successor = make_queue()
        held = MEANWHILE[meanwhile](successor, poll_one(successor))
        before = contents(successor)
        stale_holder.assert_fails(verb)
        assert contents(successor) == before
        if held is not None:
            successor.extend(held)
            successor.ack(held)
            assert_completed(successor, 1)

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_stale_holder_cannot_change_a_later_push_of_its_id(
        self, stale_holder: StaleHolder, verb: str, make_queue: MakeQueue, contents: Contents
    ) -> None:
        successor = make_queue()
        successor.ack(poll_one(successor))
        message = push_and_poll(successor, id="a")
        assert message.attempts == stale_holder.message.attempts
        before = contents(successor)
        stale_holder.assert_fails(verb)
        assert contents(successor) == before
        successor.ack(message)

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_worker_that_claims_again_cannot_settle_with_its_former_lease(
        self, queue: AnyQueue, verb: str, clock: ManualClock, contents: Contents
    ) -> None:
        queue.push(AnyMessage(id="a"))
        former = StaleHolder(queue, poll_one(queue))
        clock.advance(LEASE + 1)
        message = poll_one(queue)
        before = contents(queue)
        former.assert_fails(verb)
        assert contents(queue) == before
        queue.ack(message)

    def test_a_worker_past_its_deadline_cannot_settle_even_if_no_other_took_over(
        self, queue: AnyQueue, clock: ManualClock, contents: Contents
    ) -> None:
        queue.push_many(AnyMessage(id=verb) for verb in VERBS)
        messages = {message.id: message for message in queue.poll(len(VERBS))}
        clock.advance(LEASE)
        before = contents(queue)
        for verb, message in messages.items():
            with pytest.raises(LeaseLost, match=f"'{verb}'"):
                VERBS[verb](queue, message)
        assert contents(queue) == before

    def test_a_stale_holder_cannot_overwrite_its_successors_checkpoint(
        self, stale_holder: StaleHolder, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        require_capabilities(stale_holder.queue, "checkpoint")
        successor = make_queue()
        successor.save_checkpoint(poll_one(successor), "from the successor")
        with pytest.raises(LeaseLost):
            stale_holder.queue.save_checkpoint(stale_holder.message, "from the stale holder")
        clock.advance(LEASE + 1)
        third = make_queue()
        assert third.load_checkpoint(poll_one(third)) == "from the successor"
