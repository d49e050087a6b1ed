"""What people see: counts that add up, who holds what, and how it came to that."""

import pytest

from holdfast.core.clock import utc
from holdfast.core.queue.manager import MessageState
from holdfast.core.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    SETTLE,
    AnyQueue,
    MakeQueue,
    must_have_completed,
    need,
    poll_all,
    poll_one,
    seen,
)


def fill(queue: AnyQueue, clock: ManualClock) -> None:
    """One message in each state a message can be in."""
    queue.push_many(AnyMessage(id=one) for one in ("expired", "completed", "failed", "retried"))
    messages = {message.id: message for message in poll_all(queue)}
    queue.ack(messages["completed"])
    queue.dead_letter(messages["failed"], "no use")
    queue.nack(messages["retried"], delay_seconds=10 * LEASE, reason="not today")
    clock.advance(LEASE + 1)
    queue.push(AnyMessage(id="ready"))
    clock.advance(5)


class InspectionPromises:
    def test_an_empty_queue_counts_nothing(self, queue: AnyQueue) -> None:
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.expired) == (0, 0, 0, 0)
        assert (stats.failed, stats.oldest_ready_seconds) == (0, None)
        must_have_completed(queue, 0)

    def test_the_counts_add_up(self, queue: AnyQueue, clock: ManualClock) -> None:
        need(queue, "books")
        fill(queue, clock)
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.expired) == (1, 1, 1, 1)
        assert (stats.completed, stats.failed) == (1, 1)
        assert stats.oldest_ready_seconds == pytest.approx(5, abs=0.1)

    def test_every_message_is_in_one_state_at_every_step(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.push_many(AnyMessage() for _ in range(9))
        verbs = []
        for verb in (*SETTLE, "let it run out") * 2:
            verbs.append(verb)
            messages = queue.poll(2)
            for message in messages:
                if verb in SETTLE:
                    SETTLE[verb](queue, message)
            clock.advance(LEASE + 1)
            stats = queue.stats()
            in_one_state = stats.ready + stats.delayed + stats.leased
            acked = 2 * verbs.count("ack")
            assert in_one_state + acked + stats.failed == 9
            must_have_completed(queue, acked)

    def test_looking_changes_nothing(self, queue: AnyQueue, clock: ManualClock) -> None:
        need(queue, "peek", "find")
        fill(queue, clock)
        before = seen(queue)
        for _ in range(3):
            seen(queue)
        assert seen(queue) == before
        assert sorted(message.id for message in poll_all(queue)) == ["expired", "ready"]

    @pytest.mark.parametrize("state", MessageState)
    def test_peek_shows_what_is_in_a_state(
        self, queue: AnyQueue, clock: ManualClock, state: MessageState
    ) -> None:
        need(queue, "peek")
        fill(queue, clock)
        expected = {
            MessageState.PENDING: ["ready", "retried"],
            MessageState.LEASED: ["expired"],
            MessageState.COMPLETED: ["completed"],
            MessageState.FAILED: ["failed"],
        }
        views = list(queue.peek(state))
        assert sorted(view.id for view in views) == expected[state]
        assert {view.state for view in views} == {state}
        assert all(view.where for view in views)

    def test_peek_shows_no_more_than_asked_for(self, queue: AnyQueue) -> None:
        need(queue, "peek")
        queue.push_many(AnyMessage() for _ in range(10))
        assert len(list(queue.peek(MessageState.PENDING, 4))) == 4
        assert len(list(queue.peek(MessageState.PENDING))) == 10

    def test_an_unknown_id_is_not_found(self, queue: AnyQueue) -> None:
        need(queue, "find")
        assert queue.find("nobody") == []

    def test_find_shows_a_waiting_message_and_its_due_time(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        need(queue, "find")
        queue.push(AnyMessage(id="a", text="hello"), delay_seconds=60)
        [view] = queue.find("a")
        assert (view.state, view.attempts, view.holder) == (MessageState.PENDING, 0, None)
        assert view.due_at is not None
        assert abs((view.due_at - utc(clock.time() + 60)).total_seconds()) < 0.1
        assert view.body is not None
        assert (view.body["id"], view.body["text"]) == ("a", "hello")

    def test_find_shows_who_holds_a_message_since_when_and_until_when(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        need(queue, "find")
        queue.push(AnyMessage(id="a"))
        claimed = utc(clock.time())
        message = poll_one(queue)
        clock.advance(10)
        queue.extend(message)
        [view] = queue.find("a")
        assert (view.state, view.attempts) == (MessageState.LEASED, 1)
        assert view.holder is not None
        assert view.holder.attempt == 1
        assert view.holder.worker_id
        assert abs((view.holder.timestamp - claimed).total_seconds()) < 0.1
        ends = utc(clock.time() + LEASE)
        assert abs((view.holder.expires_at - ends).total_seconds()) < 0.1

    def test_holders_can_be_told_apart(self, make_queue: MakeQueue, clock: ManualClock) -> None:
        need(make_queue(), "find")
        holders = []
        make_queue().push(AnyMessage(id="a"))
        for _ in range(2):
            queue = make_queue()
            poll_one(queue)
            [view] = queue.find("a")
            assert view.holder is not None
            holders.append(view.holder.worker_id)
            clock.advance(LEASE + 1)
        assert len(set(holders)) == 2

    def test_find_shows_how_earlier_attempts_ended(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        queue = make_queue(max_attempts=9)
        need(queue, "find", "history")
        queue.push(AnyMessage(id="a"))
        poll_one(queue)
        [held] = queue.find("a")
        assert held.holder is not None
        clock.advance(LEASE + 1)
        retried_at = utc(clock.time())
        queue.nack(poll_one(queue), delay_seconds=0, reason="no answer", detail="Traceback: …")
        poll_one(queue)
        [view] = queue.find("a")
        assert view.attempts == 3
        lost, retried = view.past
        assert (lost.attempt, lost.outcome) == (1, "lost")
        assert lost.worker_id == held.holder.worker_id
        assert (retried.attempt, retried.outcome) == (2, "retried")
        assert (retried.reason, retried.detail) == ("no answer", "Traceback: …")
        assert abs((retried.at - retried_at).total_seconds()) < 0.1

    def test_find_shows_every_push_of_an_id(self, queue: AnyQueue) -> None:
        need(queue, "find")
        queue.push(AnyMessage(id="a"))
        queue.ack(poll_one(queue))
        queue.push(AnyMessage(id="a"))
        views = queue.find("a")
        assert {view.state for view in views} == {MessageState.COMPLETED, MessageState.PENDING}
        assert len({view.key for view in views}) == 2

    def test_a_view_does_not_print_the_body(self, queue: AnyQueue) -> None:
        need(queue, "find")
        queue.push(AnyMessage(id="a", card="4111-1111"))
        [view] = queue.find("a")
        assert "4111" not in repr(view)
