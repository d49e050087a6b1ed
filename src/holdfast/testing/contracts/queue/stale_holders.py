"""StaleHolderPromises: workers that lost their lease and do not know it yet. They can do nothing."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from holdfast.core.errors import LeaseLost
from holdfast.core.lease.lease import LeaseState
from holdfast.core.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    VERBS,
    AnyQueue,
    MakeQueue,
    lease,
    must_have_completed,
    need,
    poll_one,
    standing_still,
)

Contents = Callable[[AnyQueue], object]


@dataclass(frozen=True)
class StaleHolder:
    queue: AnyQueue
    message: AnyMessage

    def must_fail(self, verb: str) -> None:
        with pytest.raises(LeaseLost):
            VERBS[verb](self.queue, self.message)
        assert lease(self.message).state is LeaseState.LOST
        assert lease(self.message).lost.is_set()


class StaleHolderPromises:
    @pytest.fixture(params=["its clock tells it", "only the queue can tell it"])
    def zombie(
        self, request: pytest.FixtureRequest, make_queue: MakeQueue, clock: ManualClock
    ) -> StaleHolder:
        """Holds "a", and then sleeps past its deadline.

        The second one stands for a worker that was frozen between its look at the clock
        and its call: only the fence is left to stop it.
        """
        if request.param == "only the queue can tell it":
            need(make_queue(), "fence")
        own = clock if request.param == "its clock tells it" else standing_still(clock)
        queue = make_queue(clock=own)
        queue.push(AnyMessage(id="a"))
        zombie = StaleHolder(queue, poll_one(queue))
        clock.advance(LEASE + 1)
        return zombie

    @pytest.mark.parametrize("verb", VERBS)
    def test_it_changes_nothing_while_another_works(
        self, zombie: StaleHolder, verb: str, make_queue: MakeQueue, contents: Contents
    ) -> None:
        thief = make_queue()
        message = poll_one(thief)
        before = contents(thief)
        zombie.must_fail(verb)
        assert contents(thief) == before
        thief.extend(message)
        thief.ack(message)
        must_have_completed(thief, 1)

    @pytest.mark.parametrize("verb", VERBS)
    def test_it_changes_nothing_after_another_finished(
        self, zombie: StaleHolder, verb: str, make_queue: MakeQueue, contents: Contents
    ) -> None:
        thief = make_queue()
        thief.ack(poll_one(thief))
        before = contents(thief)
        zombie.must_fail(verb)
        assert contents(thief) == before

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("given_up_by", ["nack", "release", "dead_letter"])
    def test_it_changes_nothing_after_another_gave_up(
        self,
        zombie: StaleHolder,
        verb: str,
        given_up_by: str,
        make_queue: MakeQueue,
        contents: Contents,
    ) -> None:
        thief = make_queue()
        VERBS[given_up_by](thief, poll_one(thief))
        before = contents(thief)
        zombie.must_fail(verb)
        assert contents(thief) == before

    @pytest.mark.parametrize("verb", VERBS)
    def test_it_changes_nothing_after_a_redrive_set_the_attempts_back(
        self, zombie: StaleHolder, verb: str, make_queue: MakeQueue, contents: Contents
    ) -> None:
        thief = make_queue()
        thief.dead_letter(poll_one(thief), "no use")
        thief.redrive()
        message = poll_one(thief)
        assert message.attempts == zombie.message.attempts
        before = contents(thief)
        zombie.must_fail(verb)
        assert contents(thief) == before

    @pytest.mark.parametrize("verb", VERBS)
    def test_it_cannot_touch_a_later_push_of_its_id(
        self, zombie: StaleHolder, verb: str, make_queue: MakeQueue, contents: Contents
    ) -> None:
        thief = make_queue()
        thief.ack(poll_one(thief))
        thief.push(AnyMessage(id="a"))
        message = poll_one(thief)
        assert message.attempts == zombie.message.attempts
        before = contents(thief)
        zombie.must_fail(verb)
        assert contents(thief) == before
        thief.ack(message)

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_worker_that_claims_again_is_told_apart_from_its_former_self(
        self, queue: AnyQueue, verb: str, clock: ManualClock, contents: Contents
    ) -> None:
        queue.push(AnyMessage(id="a"))
        former = StaleHolder(queue, poll_one(queue))
        clock.advance(LEASE + 1)
        message = poll_one(queue)
        before = contents(queue)
        former.must_fail(verb)
        assert contents(queue) == before
        queue.ack(message)

    def test_past_its_own_deadline_it_does_not_settle_even_if_nobody_took_over(
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

    def test_what_it_saved_last_cannot_hide_what_its_successor_saved(
        self, zombie: StaleHolder, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        need(zombie.queue, "checkpoint")
        thief = make_queue()
        thief.save_checkpoint(poll_one(thief), "from the thief")
        with pytest.raises(LeaseLost):
            zombie.queue.save_checkpoint(zombie.message, "from the zombie")
        clock.advance(LEASE + 1)
        third = make_queue()
        assert third.load_checkpoint(poll_one(third)) == "from the thief"
