"""InspectionPromises: the counts, holders and history that operators see are right."""

import os
import socket

import pytest

from holdfast.lease.clock import to_utc
from holdfast.lease.lease import Refused
from holdfast.queue.manager import MessageState
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    SETTLE,
    AnyQueue,
    MakeQueue,
    assert_completed,
    poll_all,
    poll_one,
    push_and_poll,
    require_capabilities,
    take_snapshot,
)
from holdfast.version import read_version


def push_every_state(queue: AnyQueue, clock: ManualClock) -> None:
    """Push messages and bring one into each state."""
    queue.push_many(
        AnyMessage(id=message_id)
        for message_id in ("expired", "completed", "failed", "retried")
    )
    messages = {message.id: message for message in poll_all(queue)}
    queue.ack(messages["completed"])
    queue.dead_letter(messages["failed"], "no use")
    queue.nack(messages["retried"], delay_seconds=10 * LEASE, reason="not today")
    clock.advance(LEASE + 1)
    queue.push(AnyMessage(id="ready"))
    clock.advance(5)


def _get_beat(queue: AnyQueue) -> tuple[float | None, float | None]:
    """Return the seconds from the beat to the renewal of the only lease, and the progress."""
    [leased] = queue.browse(MessageState.LEASED).messages
    push = queue.find_push(leased.key)
    assert leased.holder is not None
    assert push is not None
    assert push.holder is not None
    assert (push.holder.beat_at, push.holder.progress) == (
        leased.holder.beat_at,
        leased.holder.progress,
    )
    if leased.holder.beat_at is None:
        return None, leased.holder.progress
    to_end = leased.holder.expires_at - leased.holder.beat_at
    return to_end.total_seconds() - LEASE, leased.holder.progress


class InspectionPromises:
    """Promises about stats, peek and find."""

    def test_an_empty_queue_counts_nothing(self, queue: AnyQueue) -> None:
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.expired) == (0, 0, 0, 0)
        assert (stats.failed, stats.oldest_ready_seconds) == (0, None)
        assert_completed(queue, 0)

    def test_the_counts_add_up(self, queue: AnyQueue, clock: ManualClock) -> None:
        require_capabilities(queue, "exact_counts")
        push_every_state(queue, clock)
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.expired) == (1, 1, 1, 1)
        assert (stats.completed, stats.failed) == (1, 1)
        assert stats.oldest_ready_seconds == pytest.approx(5, abs=0.1)

    def test_every_message_is_in_one_state_at_every_step(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.push_many(AnyMessage() for _ in range(9))
        verbs = []
        for verb in (*SETTLE, "let it expire") * 2:
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
            assert_completed(queue, acked)

    def test_inspection_changes_nothing(self, queue: AnyQueue, clock: ManualClock) -> None:
        require_capabilities(queue, "peek", "find")
        push_every_state(queue, clock)
        before = take_snapshot(queue)
        for _ in range(3):
            take_snapshot(queue)
        assert take_snapshot(queue) == before
        assert sorted(message.id for message in poll_all(queue)) == ["expired", "ready"]

    @pytest.mark.parametrize("state", MessageState)
    def test_peek_shows_what_is_in_a_state(
        self, queue: AnyQueue, clock: ManualClock, state: MessageState
    ) -> None:
        require_capabilities(queue, "peek")
        push_every_state(queue, clock)
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
        require_capabilities(queue, "peek")
        queue.push_many(AnyMessage() for _ in range(10))
        assert len(list(queue.peek(MessageState.PENDING, 4))) == 4
        assert len(list(queue.peek(MessageState.PENDING))) == 10

    def test_an_unknown_id_is_not_found(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "find")
        assert queue.find("unknown") == []

    def test_find_shows_a_waiting_message_and_its_due_time(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(queue, "find")
        queue.push(AnyMessage(id="a", text="hello"), delay_seconds=60)
        [view] = queue.find("a")
        assert (view.state, view.attempts, view.holder) == (MessageState.PENDING, 0, None)
        assert view.due_at is not None
        assert abs((view.due_at - to_utc(clock.time() + 60)).total_seconds()) < 0.1
        assert view.body is not None
        assert (view.body["id"], view.body["text"]) == ("a", "hello")

    @pytest.mark.requirement("R001-038")
    def test_find_shows_who_holds_a_message_since_when_and_until_when(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(queue, "find")
        queue.push(AnyMessage(id="a"))
        claimed = to_utc(clock.time())
        message = poll_one(queue)
        clock.advance(10)
        queue.extend(message)
        [view] = queue.find("a")
        assert (view.state, view.attempts) == (MessageState.LEASED, 1)
        assert view.holder is not None
        assert view.holder.attempt == 1
        assert view.holder.worker_id
        assert abs((view.holder.timestamp - claimed).total_seconds()) < 0.1
        ends = to_utc(clock.time() + LEASE)
        assert abs((view.holder.expires_at - ends).total_seconds()) < 0.1

    def test_holders_have_different_worker_ids(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        require_capabilities(make_queue(), "find")
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

    @pytest.mark.requirement("R001-047")
    def test_find_shows_how_earlier_attempts_ended(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        queue = make_queue(max_attempts=9)
        require_capabilities(queue, "find", "history")
        push_and_poll(queue, id="a")
        [held] = queue.find("a")
        assert held.holder is not None
        clock.advance(LEASE + 1)
        retried_at = to_utc(clock.time())
        queue.nack(poll_one(queue), delay_seconds=0, reason="no answer", detail="Traceback: …")
        poll_one(queue)
        [view] = queue.find("a")
        assert view.attempts == 3
        lost, retried = view.past
        assert (lost.attempt, lost.outcome) == (1, "lost")
        assert lost.worker_id == held.holder.worker_id
        assert (retried.attempt, retried.outcome) == (2, "retried")
        assert retried.worker_id == held.holder.worker_id  # the same queue polled again
        assert (retried.reason, retried.detail) == ("no answer", "Traceback: …")
        assert abs((retried.at - retried_at).total_seconds()) < 0.1

    def test_find_shows_every_push_of_an_id(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "find")
        queue.ack(push_and_poll(queue, id="a"))
        queue.push(AnyMessage(id="a"))
        views = queue.find("a")
        assert {view.state for view in views} == {MessageState.COMPLETED, MessageState.PENDING}
        assert len({view.key for view in views}) == 2

    def test_a_view_does_not_print_the_body(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "find")
        queue.push(AnyMessage(id="a", card="4111-1111"))
        [view] = queue.find("a")
        assert "4111" not in repr(view)

    # -- what the console shows

    def test_pages_hold_every_message_once_and_no_body(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "peek")
        queue.push_many(AnyMessage(id=f"{number}", domain="a") for number in range(7))
        ids, after = [], None
        for size in (3, 3, 1):
            page = queue.browse(MessageState.PENDING, after=after, limit=3)
            assert len(page.messages) == size
            assert all(message.body is None for message in page.messages)
            ids += [message.id for message in page.messages]
            after = page.after
        assert sorted(ids) == [f"{number}" for number in range(7)]
        assert after is None

    def test_a_push_is_found_by_its_key_and_never_by_its_id(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "find", "peek")
        queue.push_many(AnyMessage(id=message_id, note=1) for message_id in ("2", "1", "x"))
        for message in queue.browse(MessageState.PENDING).messages:
            push = queue.find_push(message.key)
            assert push is not None
            assert (push.id, push.key) == (message.id, message.key)
            assert push.body is not None
        assert queue.find_push("x") is None
        assert queue.find_push("99" * 20) is None

    def test_a_page_of_leases_says_how_long_they_last(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(queue, "peek", "workers")
        message = push_and_poll(queue, id="a")
        clock.advance(LEASE / 2)
        queue.extend(message)
        [leased] = queue.browse(MessageState.LEASED).messages
        assert leased.holder is not None
        assert leased.holder.lease_seconds == pytest.approx(LEASE)
        renewed_at = leased.holder.renewed_at
        assert renewed_at is not None
        since_claim = (renewed_at - leased.holder.timestamp).total_seconds()
        assert since_claim == pytest.approx(LEASE / 2, abs=0.1)

    def test_a_renewal_tells_when_the_handler_beat_and_how_far_it_is(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(queue, "peek", "progress")
        message = push_and_poll(queue, id="a")
        lease = get_lease(message)
        clock.advance(1.0)
        queue.extend(message)
        assert _get_beat(queue) == (None, None)  # it has not beaten yet
        clock.advance(2.0)
        lease.beat(clock.monotonic(), 0.25)
        clock.advance(3.0)
        queue.extend(message)
        since, progress = _get_beat(queue)
        assert since == pytest.approx(3.0, abs=0.1)
        assert progress == 0.25
        lease.beat(clock.monotonic(), "half")  # no number: the last one stays
        queue.extend(message)
        since, progress = _get_beat(queue)
        assert since == pytest.approx(0.0, abs=0.1)
        assert progress == 0.25

    def test_a_beat_ends_with_its_attempt(self, queue: AnyQueue, clock: ManualClock) -> None:
        require_capabilities(queue, "peek", "progress")
        message = push_and_poll(queue, id="a")
        get_lease(message).beat(clock.monotonic(), 0.25)
        queue.extend(message)
        queue.nack(message, delay_seconds=0.0)
        clock.advance(1.0)
        poll_one(queue)
        assert _get_beat(queue) == (None, None)

    def test_a_stale_holder_does_not_change_the_beat_of_its_successor(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        former, successor = make_queue(), make_queue()
        require_capabilities(former, "fence", "peek", "progress")
        former.push(AnyMessage(id="a"))
        stale = get_lease(poll_one(former))
        clock.advance(LEASE + 1)
        message = poll_all(successor)[0]
        get_lease(message).beat(clock.monotonic(), 0.75)
        successor.extend(message)
        stale.beat(clock.monotonic(), 0.25)
        assert isinstance(former.renew([stale], LEASE)[0], Refused)
        assert _get_beat(successor)[1] == 0.75

    @pytest.mark.parametrize("has_work", [True, False])
    def test_a_worker_that_only_renews_or_polls_an_empty_queue_is_seen(
        self, queue: AnyQueue, clock: ManualClock, has_work: bool
    ) -> None:
        require_capabilities(queue, "workers")
        if has_work:
            queue.push(AnyMessage(id="a"))
        messages = queue.poll()
        [before] = queue.workers()
        assert before.last_seen is not None
        for _ in range(6):
            clock.advance(LEASE / 2)
            if has_work:
                queue.extend(messages[0])
            else:
                queue.poll()
        [after] = queue.workers()
        assert after.last_seen is not None
        assert after.last_seen > before.last_seen

    def test_a_worker_that_polls_is_listed_with_its_process(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "workers")
        assert queue.workers() == []
        queue.poll()
        [worker] = queue.workers()
        assert (worker.host, worker.pid) == (socket.gethostname(), os.getpid())
        assert worker.version == read_version() != ""
        assert worker.started is not None

    def test_completions_are_counted_by_minute(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(queue, "completions")
        queue.push_many(AnyMessage() for _ in range(3))
        queue.ack(poll_one(queue))
        clock.advance(120)
        for message in poll_all(queue):
            queue.ack(message)
        clock.advance(1)
        counts = queue.count_completed(5)
        assert counts == [0, 0, 1, 0, 2]
        clock.advance(3600)
        assert queue.count_completed(5) == [0] * 5
