"""DedupePromises: with it, an id that is pending, leased or completed is not pushed twice."""

import pytest

from holdfast.core.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    MUCH_LATER,
    AnyQueue,
    MakeQueue,
    must_have_completed,
    need,
    poll_all,
    poll_one,
)


class DedupePromises:
    @pytest.fixture
    def once(self, make_queue: MakeQueue) -> AnyQueue:
        need(make_queue(), "dedupe")
        return make_queue(dedupe=True)

    def test_an_id_that_is_waiting_is_not_pushed_twice(self, once: AnyQueue) -> None:
        assert once.push(AnyMessage(id="a", which=1)) == "a"
        assert once.push(AnyMessage(id="a", which=2)) == "a"
        assert [message.which for message in poll_all(once)] == [1]

    def test_an_id_that_is_delayed_is_not_pushed_twice(self, once: AnyQueue) -> None:
        once.push(AnyMessage(id="a"), delay_seconds=10)
        once.push(AnyMessage(id="a"))
        assert (once.stats().delayed, once.stats().ready) == (1, 0)

    def test_an_id_that_is_leased_is_not_pushed_twice(self, once: AnyQueue) -> None:
        once.push(AnyMessage(id="a"))
        message = poll_one(once)
        once.push(AnyMessage(id="a"))
        assert once.poll() == []
        once.extend(message)
        once.push(AnyMessage(id="a"))
        assert once.poll() == []

    def test_an_id_that_was_nacked_is_not_pushed_twice(self, once: AnyQueue) -> None:
        once.push(AnyMessage(id="a"))
        once.nack(poll_one(once), delay_seconds=0)
        once.push(AnyMessage(id="a"))
        assert once.stats().ready == 1

    def test_an_id_that_is_completed_is_not_pushed_twice(
        self, once: AnyQueue, clock: ManualClock
    ) -> None:
        once.push(AnyMessage(id="a"))
        once.ack(poll_one(once))
        clock.advance(MUCH_LATER)
        once.push(AnyMessage(id="a"))
        assert once.poll() == []
        must_have_completed(once, 1)

    def test_an_id_is_free_again_once_its_completed_message_is_purged(
        self, once: AnyQueue, clock: ManualClock
    ) -> None:
        need(once, "purge")
        once.push(AnyMessage(id="a"))
        once.ack(poll_one(once))
        clock.advance(5 * 3600)
        assert once.purge(3600) == 1
        once.push(AnyMessage(id="a"))
        assert poll_one(once).id == "a"

    def test_an_id_that_failed_may_be_pushed_again(self, once: AnyQueue) -> None:
        once.push(AnyMessage(id="a", which=1))
        once.dead_letter(poll_one(once), "no use")
        once.push(AnyMessage(id="a", which=2))
        once.push(AnyMessage(id="a", which=3))
        assert [message.which for message in poll_all(once)] == [2]
        assert once.stats().failed == 1

    def test_an_id_that_wore_out_may_be_pushed_again(self, make_queue: MakeQueue) -> None:
        need(make_queue(), "dedupe")
        once = make_queue(dedupe=True, max_attempts=1)
        once.push(AnyMessage(id="a", which=1))
        once.nack(poll_one(once), delay_seconds=0)
        assert once.poll() == []
        once.push(AnyMessage(id="a", which=2))
        assert poll_one(once).which == 2

    def test_a_redriven_id_is_not_pushed_twice(self, once: AnyQueue) -> None:
        once.push(AnyMessage(id="a", which=1))
        once.dead_letter(poll_one(once), "no use")
        once.redrive()
        once.push(AnyMessage(id="a", which=2))
        assert [message.which for message in poll_all(once)] == [1]

    def test_one_batch_holds_an_id_only_once(self, once: AnyQueue) -> None:
        ids = ["a", "b", "a", "a", "c"]
        assert once.push_many(AnyMessage(id=one) for one in ids) == ids
        assert sorted(message.id for message in poll_all(once)) == ["a", "b", "c"]

    def test_producers_know_of_each_others_ids(self, make_queue: MakeQueue) -> None:
        need(make_queue(), "dedupe")
        for _ in range(3):
            make_queue(dedupe=True).push(AnyMessage(id="a"))
        assert len(poll_all(make_queue(dedupe=True))) == 1

    def test_ids_that_look_alike_are_not_the_same(self, once: AnyQueue) -> None:
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
        once.push_many(AnyMessage(id=one) for one in ids)
        assert sorted(message.id for message in poll_all(once)) == sorted(ids)
