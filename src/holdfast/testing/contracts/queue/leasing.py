"""A message has one holder at a time. A worker that lost its lease changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.errors import LeaseLost
from holdfast.events import Events, TakenOver
from holdfast.lease.lease import LeaseState, Refused, Renewed
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    SETTLE,
    VERBS,
    AnyQueue,
    EventRecorder,
    MakeQueue,
    assert_completed,
    get_fence,
    iter_messages,
    make_frozen_clock,
    poll_all,
    poll_one,
    push_and_poll,
    require_capabilities,
)


class LeasePromises:
    """Promises about leases, extending and renewing."""

    def test_a_polled_message_is_leased_from_before_the_poll(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.push(AnyMessage(id="a"))
        asked_at = clock.monotonic()
        held = get_lease(poll_one(queue))
        assert (held.message_id, held.attempt, held.fence) == ("a", 1, 1)
        assert held.state is LeaseState.HELD
        assert held.deadline == pytest.approx(asked_at + LEASE)
        assert held.source is queue

    @pytest.mark.requirement("R001-036", "R001-041")
    def test_no_other_worker_gets_a_leased_message(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        push_and_poll(queue)
        for _ in range(3):
            assert queue.poll() == []
            assert make_queue().poll() == []
            clock.advance(LEASE / 3 - 0.5)
        assert queue.stats().leased == 1

    @pytest.mark.requirement("R001-039", "R003-003")
    def test_an_expired_lease_is_taken_over_as_the_next_attempt(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        first = push_and_poll(queue, id="a")
        clock.advance(LEASE + 1)
        stats = queue.stats()
        assert stats.expired + stats.ready == 1
        second = poll_one(make_queue())
        assert (second.id, second.attempts) == ("a", 2)
        assert get_fence(second) > get_fence(first)
        assert queue.poll() == []

    def test_a_message_of_any_age_is_redelivered_one_lease_after_its_worker_died(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        message = push_and_poll(queue)
        for _ in range(40):
            clock.advance(LEASE / 2)
            queue.extend(message)
        clock.advance(LEASE + 1)
        assert poll_one(make_queue()).attempts == 2

    def test_expired_leases_come_before_waiting_messages(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        push_and_poll(queue, id="older")
        queue.push(AnyMessage(id="newer"))
        clock.advance(LEASE + 1)
        assert [poll_one(make_queue()).id for _ in range(2)] == ["older", "newer"]

    def test_a_dead_workers_messages_return_within_a_second_of_their_lease_despite_a_backlog(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        """SQS promises no order, so there this holds only as far as it delivers older first."""
        queue.push_many(AnyMessage(id=f"lost-{number}") for number in range(20))
        lost = {message.id for message in poll_all(queue)}
        busy = make_queue()
        busy.push_many(AnyMessage() for _ in range(60))
        clock.advance(LEASE - 0.1)
        for _ in range(55):
            clock.advance(0.02)
            lost.discard(poll_one(busy).id)
        assert lost == set()

    def test_the_fence_rises_with_every_claim(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.push(AnyMessage(id="a"))
        fences = []
        for settle in ("let it expire", "nack", "release", "dead_letter and redrive", "ack"):
            message = poll_one(queue)
            fences.append(get_fence(message))
            match settle:
                case "let it expire":
                    clock.advance(LEASE + 1)
                case "nack":
                    queue.nack(message, delay_seconds=0)
                case "release":
                    queue.release(message)
                case "dead_letter and redrive" if "fence" in queue.capabilities:
                    queue.dead_letter(message, "no use")
                    queue.redrive()
                case "dead_letter and redrive":
                    queue.nack(message, delay_seconds=0)
        assert fences == sorted(set(fences))

    def test_a_takeover_is_reported(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        require_capabilities(queue, "history")
        recorder = EventRecorder()
        push_and_poll(queue, id="a")
        clock.advance(LEASE + 1)
        successor = make_queue(events=Events(recorder))
        poll_one(successor)
        [taken] = recorder.select(TakenOver)
        assert (taken.queue, taken.message_id, taken.attempt) == (successor.name, "a", 2)
        assert taken.from_worker

    def test_a_first_claim_is_no_takeover(self, make_queue: MakeQueue) -> None:
        recorder = EventRecorder()
        queue = make_queue(events=Events(recorder))
        queue.nack(push_and_poll(queue), delay_seconds=0)
        poll_one(queue)
        assert recorder.select(TakenOver) == []

    # -- extend

    def test_extending_moves_the_deadline(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        message = push_and_poll(queue)
        clock.advance(LEASE - 1)
        queue.extend(message)
        assert get_lease(message).deadline == pytest.approx(clock.monotonic() + LEASE)
        clock.advance(LEASE - 1)
        assert make_queue().poll() == []
        queue.ack(message)
        assert_completed(queue, 1)

    @pytest.mark.requirement("R003-038")
    def test_an_extension_counts_from_now_and_does_not_add_up(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        message = push_and_poll(queue)
        for _ in range(5):
            queue.extend(message, 100)
        assert get_lease(message).deadline == pytest.approx(clock.monotonic() + 100)
        clock.advance(99)
        assert make_queue().poll() == []
        clock.advance(2)
        assert poll_one(make_queue()).attempts == 2

    def test_extending_after_the_deadline_is_too_late(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        message = push_and_poll(queue)
        clock.advance(LEASE)
        with pytest.raises(LeaseLost):
            queue.extend(message)
        assert get_lease(message).state is LeaseState.LOST
        clock.advance(1)
        assert poll_one(queue).attempts == 2

    # -- renew, for the keeper

    def test_one_lost_lease_in_a_batch_does_not_cost_the_others(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        queue.push(AnyMessage(id="lost"))
        [lost] = queue.poll()
        clock.advance(LEASE - 1)
        queue.push_many([AnyMessage(id="b"), AnyMessage(id="c")])
        first, last = poll_all(queue)
        clock.advance(2)
        poll_one(make_queue())
        renewals = queue.renew([get_lease(first), get_lease(lost), get_lease(last)], LEASE)
        assert [type(renewal) for renewal in renewals] == [Renewed, Refused, Renewed]
        clock.advance(LEASE - 2)
        assert sorted(m.id for m in poll_all(make_queue())) == []

    def test_a_renewal_moves_no_deadline_by_itself(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.push(AnyMessage())
        held = get_lease(poll_one(queue))
        before = held.deadline
        clock.advance(5)
        queue.renew([held], LEASE)
        assert (held.deadline, held.state) == (before, LeaseState.HELD)

    @pytest.mark.parametrize("verb", SETTLE)
    def test_a_renewal_still_on_its_way_when_the_message_is_settled_changes_nothing(
        self, queue: AnyQueue, verb: str, contents: Callable[[AnyQueue], object]
    ) -> None:
        message = push_and_poll(queue)
        SETTLE[verb](queue, message)
        before = contents(queue)
        queue.renew([get_lease(message)], LEASE)
        assert contents(queue) == before

    def test_renewing_no_leases_does_nothing(self, queue: AnyQueue) -> None:
        assert list(queue.renew([], LEASE)) == []

    def test_a_full_batch_of_renewals_is_one_call(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        queue.push_many(AnyMessage() for _ in range(queue.renew_batch))
        leases = [get_lease(message) for message in iter_messages(queue, queue.poll_batch)]
        clock.advance(LEASE - 1)
        renewals = queue.renew(leases, LEASE)
        assert [type(renewal) for renewal in renewals] == [Renewed] * queue.renew_batch
        clock.advance(LEASE - 1)
        assert poll_all(make_queue()) == []


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
