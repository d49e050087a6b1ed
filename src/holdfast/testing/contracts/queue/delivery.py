"""A pushed message is delivered once, unchanged and in time, and not twice with dedupe."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pytest

from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    MUCH_LATER,
    AnyQueue,
    MakeQueue,
    NoteMessage,
    assert_completed,
    iter_messages,
    poll_all,
    poll_one,
    push_and_poll,
    require_capabilities,
)


class DeliveryPromises:
    """Promises about push, poll and ack."""

    def test_a_message_comes_out_as_it_went_in(self, make_queue: MakeQueue) -> None:
        queue = make_queue(model=NoteMessage)
        note = NoteMessage(
            text="gruß, 日本 \0 \U0001f642",
            number=-7,
            created_at=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        )
        assert queue.push(note) == note.id
        received = poll_one(queue)
        assert type(received) is NoteMessage
        assert received.model_copy(update={"attempts": 0}) == note

    def test_fields_that_the_model_does_not_declare_are_delivered(
        self, queue: AnyQueue
    ) -> None:
        queue.push(AnyMessage(nested={"a": [1, 2.5, None, True]}))
        assert poll_one(queue).nested == {"a": [1, 2.5, None, True]}

    def test_the_first_delivery_is_attempt_one(self, queue: AnyQueue) -> None:
        queue.push(AnyMessage(attempts=41))
        assert poll_one(queue).attempts == 1

    @pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e12])
    def test_a_delay_no_queue_could_keep_is_refused_and_changes_nothing(
        self, queue: AnyQueue, seconds: float
    ) -> None:
        for push in (queue.push, lambda m, **how: queue.push_many([m], **how)):
            with pytest.raises(ValueError, match="delay_seconds"):
                push(AnyMessage(), delay_seconds=seconds)
        message = push_and_poll(queue)
        with pytest.raises(ValueError, match="delay_seconds"):
            queue.nack(message, delay_seconds=seconds)
        with pytest.raises(ValueError, match="seconds"):
            queue.extend(message, seconds)
        queue.ack(message)
        assert_completed(queue, 1)
        assert queue.stats().delayed == 0

    def test_changes_to_the_object_after_the_push_have_no_effect(
        self, make_queue: MakeQueue
    ) -> None:
        queue = make_queue(model=NoteMessage)
        note = NoteMessage(text="as pushed")
        queue.push(note)
        note.text = "changed"
        assert poll_one(queue).text == "as pushed"

    def test_an_empty_queue_gives_nothing(self, queue: AnyQueue) -> None:
        assert queue.poll() == []
        assert queue.poll(10) == []

    @pytest.mark.requirement("R001-009")
    def test_push_returns_the_id(self, queue: AnyQueue) -> None:
        assert queue.push(AnyMessage(id="a")) == "a"
        assert poll_one(queue).id == "a"

    def test_push_many_returns_the_ids_in_order(self, queue: AnyQueue) -> None:
        ids = [f"id-{number}" for number in range(20)]
        assert queue.push_many(AnyMessage(id=message_id) for message_id in ids) == ids
        assert sorted(message.id for message in poll_all(queue)) == sorted(ids)

    def test_pushing_many_of_none_is_nothing(self, queue: AnyQueue) -> None:
        assert queue.push_many([]) == []
        assert queue.stats().ready == 0

    @pytest.mark.requirement("R001-011")
    def test_an_acked_message_never_comes_back(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        queue.ack(push_and_poll(queue))
        clock.advance(MUCH_LATER)
        assert queue.poll() == []
        assert make_queue().poll() == []
        assert_completed(queue, 1)

    def test_older_messages_come_first(self, queue: AnyQueue, clock: ManualClock) -> None:
        for number in range(12):
            queue.push(AnyMessage(id=f"{number}"))
            clock.advance(0.5)
        batches = [[message.id for message in queue.poll(4)] for _ in range(3)]
        assert batches == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9", "10", "11"]]

    def test_one_poll_gives_no_more_than_asked_for(self, queue: AnyQueue) -> None:
        queue.push_many(AnyMessage() for _ in range(7))
        assert [len(queue.poll(3)) for _ in range(4)] == [3, 3, 1, 0]

    @pytest.mark.requirement("R001-010")
    def test_a_huge_batch_size_gives_what_is_there(self, queue: AnyQueue) -> None:
        pushed = queue.push_many(AnyMessage() for _ in range(25))
        received = [message.id for message in iter_messages(queue, 10**9)]
        assert sorted(received) == sorted(pushed)

    @pytest.mark.parametrize("batch_size", [0, -1])
    def test_a_batch_size_below_one_is_refused_and_claims_nothing(
        self, queue: AnyQueue, batch_size: int
    ) -> None:
        queue.push(AnyMessage())
        with pytest.raises(ValueError, match="batch_size must be 1 or more"):
            queue.poll(batch_size)
        assert queue.stats().ready == 1

    def test_a_delayed_message_waits_for_its_time(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.push(AnyMessage(id="later"), delay_seconds=10)
        queue.push(AnyMessage(id="now"))
        assert [message.id for message in poll_all(queue)] == ["now"]
        clock.advance(9)
        assert queue.poll() == []
        clock.advance(2)
        message = poll_one(queue)
        assert (message.id, message.attempts) == ("later", 1)

    def test_a_negative_delay_counts_as_none(self, queue: AnyQueue) -> None:
        queue.push(AnyMessage(), delay_seconds=-5)
        assert len(queue.poll()) == 1

    def test_one_id_pushed_twice_is_two_messages(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.push(AnyMessage(id="same", which=1))
        queue.push(AnyMessage(id="same", which=2))
        first, second = poll_all(queue)
        assert {first.which, second.which} == {1, 2}
        queue.ack(first)
        clock.advance(LEASE + 1)
        assert poll_one(queue).which == second.which

    def test_an_id_may_be_pushed_again_after_its_ack(self, queue: AnyQueue) -> None:
        for which in (1, 2):
            message = push_and_poll(queue, id="same", which=which)
            assert (message.which, message.attempts) == (which, 1)
            queue.ack(message)
        assert_completed(queue, 2)

    def test_a_polled_message_can_be_pushed_as_a_new_one(self, queue: AnyQueue) -> None:
        first = push_and_poll(queue, id="a")
        queue.push(first)
        again = poll_one(queue)
        assert (again.id, again.attempts) == ("a", 1)
        queue.ack(first)
        queue.ack(again)

    def test_closing_loses_nothing(self, make_queue: MakeQueue, clock: ManualClock) -> None:
        with make_queue() as queue:
            queue.push_many([AnyMessage(id="waiting"), AnyMessage(id="held")])
            queue.poll()
        clock.advance(LEASE + 1)
        assert sorted(m.id for m in poll_all(make_queue())) == ["held", "waiting"]

    @pytest.mark.parametrize("setting", [{"lease_seconds": 0}, {"max_attempts": 0}])
    def test_invalid_settings_are_refused(
        self, make_queue: MakeQueue, setting: dict[str, int]
    ) -> None:
        with pytest.raises(ValueError, match=next(iter(setting))):
            make_queue(**setting)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until other threads have made the condition true; fail after 30 seconds."""
    pause = Event()
    for _ in range(30_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("the condition was not true after 30 seconds")


class DelayPromises:
    """Promises about the waiting of a poll."""

    @pytest.fixture
    def auto_clock(self, clock: ManualClock) -> ManualClock:
        """The clock in a mode in which each wait moves it."""
        clock.auto_advance = True
        return clock

    def test_a_poll_waits_as_long_as_requested(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        before = auto_clock.monotonic()
        assert queue.poll(wait_seconds=5) == []
        assert auto_clock.monotonic() - before == pytest.approx(5, abs=0.3)

    def test_a_poll_does_not_wait_unless_requested(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        before = auto_clock.monotonic()
        assert queue.poll() == []
        assert auto_clock.monotonic() == before

    def test_a_poll_does_not_wait_when_a_message_is_ready(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        queue.push_many(AnyMessage() for _ in range(3))
        before = auto_clock.monotonic()
        assert len(queue.poll(10, wait_seconds=60)) == 3
        assert auto_clock.monotonic() == before

    def test_a_poll_ends_when_a_delayed_message_is_due(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        queue.push(AnyMessage(), delay_seconds=3)
        before = auto_clock.monotonic()
        [_] = queue.poll(wait_seconds=60)
        assert 3 <= auto_clock.monotonic() - before <= 4

    def test_a_poll_ends_when_a_lease_expires(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        push_and_poll(queue)
        before = auto_clock.monotonic()
        [again] = queue.poll(wait_seconds=10 * LEASE)
        assert again.attempts == 2
        assert LEASE <= auto_clock.monotonic() - before <= LEASE + 1

    def test_a_poll_ends_when_another_worker_pushes(
        self, queue: AnyQueue, clock: ManualClock, make_queue: Callable[[], AnyQueue]
    ) -> None:
        with ThreadPoolExecutor(1) as pool:
            polling: Future[list[Any]] = pool.submit(queue.poll, wait_seconds=1000)
            wait_until(lambda: clock.waiting == 1)
            make_queue().push(AnyMessage(id="a"))
            before = clock.monotonic()
            clock.advance(1)
            [message] = polling.result(30)
        assert message.id == "a"
        assert clock.monotonic() == before + 1

    def test_a_poll_ends_at_once_when_stop_is_set(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        stop = Event()
        with ThreadPoolExecutor(1) as pool:
            polling = pool.submit(queue.poll, wait_seconds=1_000_000, stop=stop)
            wait_until(lambda: clock.waiting == 1)
            stop.set()
            done, _ = wait([polling], 30)
            clock.advance(2_000_000)  # a poll that ignores stop must not block the tests
        assert done
        assert polling.result() == []

    def test_a_poll_does_not_wait_when_stop_is_set_already(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        stop = Event()
        stop.set()
        before = auto_clock.monotonic()
        assert queue.poll(wait_seconds=60, stop=stop) == []
        assert auto_clock.monotonic() == before


class DedupePromises:
    """Promises about queues with `dedupe`."""

    @pytest.fixture
    def deduping(self, make_queue: MakeQueue) -> AnyQueue:
        """A queue with `dedupe`."""
        require_capabilities(make_queue(), "dedupe")
        return make_queue(dedupe=True)

    def test_an_id_that_is_waiting_is_not_pushed_twice(self, deduping: AnyQueue) -> None:
        assert deduping.push(AnyMessage(id="a", which=1)) == "a"
        assert deduping.push(AnyMessage(id="a", which=2)) == "a"
        assert [message.which for message in poll_all(deduping)] == [1]

    def test_an_id_that_is_delayed_is_not_pushed_twice(self, deduping: AnyQueue) -> None:
        deduping.push(AnyMessage(id="a"), delay_seconds=10)
        deduping.push(AnyMessage(id="a"))
        assert (deduping.stats().delayed, deduping.stats().ready) == (1, 0)

    def test_an_id_that_is_leased_is_not_pushed_twice(self, deduping: AnyQueue) -> None:
        message = push_and_poll(deduping, id="a")
        deduping.push(AnyMessage(id="a"))
        assert deduping.poll() == []
        deduping.extend(message)
        deduping.push(AnyMessage(id="a"))
        assert deduping.poll() == []

    def test_an_id_that_was_nacked_is_not_pushed_twice(self, deduping: AnyQueue) -> None:
        deduping.nack(push_and_poll(deduping, id="a"), delay_seconds=0)
        deduping.push(AnyMessage(id="a"))
        assert deduping.stats().ready == 1

    def test_an_id_that_is_completed_is_not_pushed_twice(
        self, deduping: AnyQueue, clock: ManualClock
    ) -> None:
        deduping.ack(push_and_poll(deduping, id="a"))
        clock.advance(MUCH_LATER)
        deduping.push(AnyMessage(id="a"))
        assert deduping.poll() == []
        assert_completed(deduping, 1)

    def test_an_id_is_free_again_once_its_completed_message_is_purged(
        self, deduping: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(deduping, "purge")
        deduping.ack(push_and_poll(deduping, id="a"))
        clock.advance(5 * 3600)
        assert deduping.purge(3600) == 1
        deduping.push(AnyMessage(id="a"))
        assert poll_one(deduping).id == "a"

    def test_an_id_that_failed_may_be_pushed_again(self, deduping: AnyQueue) -> None:
        deduping.dead_letter(push_and_poll(deduping, id="a", which=1), "no use")
        deduping.push(AnyMessage(id="a", which=2))
        deduping.push(AnyMessage(id="a", which=3))
        assert [message.which for message in poll_all(deduping)] == [2]
        assert deduping.stats().failed == 1

    def test_an_id_out_of_attempts_may_be_pushed_again(self, make_queue: MakeQueue) -> None:
        require_capabilities(make_queue(), "dedupe")
        deduping = make_queue(dedupe=True, max_attempts=1)
        deduping.nack(push_and_poll(deduping, id="a", which=1), delay_seconds=0)
        assert deduping.poll() == []
        deduping.push(AnyMessage(id="a", which=2))
        assert poll_one(deduping).which == 2

    def test_a_redriven_id_is_not_pushed_twice(self, deduping: AnyQueue) -> None:
        deduping.dead_letter(push_and_poll(deduping, id="a", which=1), "no use")
        deduping.redrive()
        deduping.push(AnyMessage(id="a", which=2))
        assert [message.which for message in poll_all(deduping)] == [1]

    def test_one_batch_holds_an_id_only_once(self, deduping: AnyQueue) -> None:
        ids = ["a", "b", "a", "a", "c"]
        assert deduping.push_many(AnyMessage(id=message_id) for message_id in ids) == ids
        assert sorted(message.id for message in poll_all(deduping)) == ["a", "b", "c"]

    def test_producers_know_of_each_others_ids(self, make_queue: MakeQueue) -> None:
        require_capabilities(make_queue(), "dedupe")
        for _ in range(3):
            make_queue(dedupe=True).push(AnyMessage(id="a"))
        assert len(poll_all(make_queue(dedupe=True))) == 1

    def test_ids_that_look_alike_are_not_the_same(self, deduping: AnyQueue) -> None:
        # Case, composed and decomposed é, separators, look-alike and trailing characters.
        ids = [
            "a",
            "A",
            "a ",
            "a/b",
            "a_b",
            "a.b",
            "\u00e9",
            "e\u0301",
            "\u0430",
            "a\0",
            "0",
            "00",
        ]
        deduping.push_many(AnyMessage(id=message_id) for message_id in ids)
        assert sorted(message.id for message in poll_all(deduping)) == sorted(ids)
