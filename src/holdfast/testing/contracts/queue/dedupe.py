"""DedupePromises: an id that is pending, leased or completed is not pushed twice."""

import pytest

from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    MUCH_LATER,
    AnyQueue,
    MakeQueue,
    assert_completed,
    poll_all,
    poll_one,
    push_and_poll,
    require_capabilities,
)


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
