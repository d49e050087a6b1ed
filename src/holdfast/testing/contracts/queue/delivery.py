"""DeliveryPromises: a message that is pushed is delivered once, in time and unchanged."""

from datetime import UTC, datetime

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
