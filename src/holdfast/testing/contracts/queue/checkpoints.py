"""CheckpointPromises: what an attempt saved is there for the next one, and for no other."""

from typing import Any

import pytest

from holdfast.core.errors import HoldfastError, MessageTooLarge, NotLeased
from holdfast.core.queue.message import MAX_BYTES, AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    SETTLE,
    AnyQueue,
    MakeQueue,
    need,
    poll_one,
)


class CheckpointPromises:
    @pytest.fixture
    def saving(self, queue: AnyQueue) -> AnyQueue:
        need(queue, "checkpoint")
        return queue

    def test_a_first_attempt_finds_no_checkpoint(self, saving: AnyQueue) -> None:
        saving.push(AnyMessage())
        assert saving.load_checkpoint(poll_one(saving)) is None

    @pytest.mark.parametrize(
        "checkpoint", [{"page": 7, "seen": ["ä", None, 1.5]}, [1], "text", 0, False, "", {}]
    )
    def test_the_next_attempt_finds_what_was_saved_before_the_crash(
        self, saving: AnyQueue, clock: ManualClock, make_queue: MakeQueue, checkpoint: Any
    ) -> None:
        saving.push(AnyMessage())
        saving.save_checkpoint(poll_one(saving), checkpoint)
        clock.advance(LEASE + 1)
        successor = make_queue()
        assert successor.load_checkpoint(poll_one(successor)) == checkpoint

    def test_the_last_of_several_counts(
        self, saving: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        for page in range(5):
            saving.save_checkpoint(message, page)
        clock.advance(LEASE + 1)
        successor = make_queue()
        assert successor.load_checkpoint(poll_one(successor)) == 4

    @pytest.mark.parametrize("verb", ["nack", "release"])
    def test_it_survives_a_return(self, saving: AnyQueue, verb: str) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        saving.save_checkpoint(message, "half-way")
        SETTLE[verb](saving, message)
        assert saving.load_checkpoint(poll_one(saving)) == "half-way"

    def test_it_survives_an_attempt_that_saved_nothing(
        self, saving: AnyQueue, clock: ManualClock
    ) -> None:
        saving.push(AnyMessage())
        saving.save_checkpoint(poll_one(saving), "half-way")
        for _ in range(2):
            clock.advance(LEASE + 1)
            assert saving.load_checkpoint(poll_one(saving)) == "half-way"

    def test_it_survives_many_returns_of_unstarted_work(self, saving: AnyQueue) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        saving.save_checkpoint(message, "half-way")
        saving.release(message)
        for _ in range(150):
            saving.release(poll_one(saving))
        assert saving.load_checkpoint(poll_one(saving)) == "half-way"

    def test_it_survives_the_dead_letters(self, saving: AnyQueue) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        saving.save_checkpoint(message, "half-way")
        saving.dead_letter(message, "no use")
        saving.redrive()
        assert saving.load_checkpoint(poll_one(saving)) == "half-way"

    def test_an_attempt_loads_what_came_before_it_not_what_it_saved_itself(
        self, saving: AnyQueue
    ) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        saving.save_checkpoint(message, "first")
        assert saving.load_checkpoint(message) is None
        saving.nack(message, delay_seconds=0)
        message = poll_one(saving)
        saving.save_checkpoint(message, "second")
        assert saving.load_checkpoint(message) == "first"

    def test_it_is_gone_after_the_ack(self, saving: AnyQueue) -> None:
        need(saving, "find")
        saving.push(AnyMessage(id="a"))
        message = poll_one(saving)
        saving.save_checkpoint(message, "half-way")
        saving.nack(message, delay_seconds=0)
        saving.ack(poll_one(saving))
        [view] = saving.find("a")
        assert view.checkpoint is None

    def test_a_later_push_of_the_id_does_not_find_it(self, saving: AnyQueue) -> None:
        saving.push(AnyMessage(id="a"))
        message = poll_one(saving)
        saving.save_checkpoint(message, "half-way")
        saving.push(AnyMessage(id="a"))
        assert saving.load_checkpoint(poll_one(saving)) is None

    def test_people_see_the_newest(self, saving: AnyQueue) -> None:
        need(saving, "find")
        saving.push(AnyMessage(id="a"))
        message = poll_one(saving)
        saving.save_checkpoint(message, "first")
        saving.nack(message, delay_seconds=0)
        saving.save_checkpoint(poll_one(saving), "second")
        [view] = saving.find("a")
        assert view.checkpoint == "second"

    def test_saving_moves_no_deadline(
        self, saving: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        clock.advance(LEASE - 1)
        saving.save_checkpoint(message, "half-way")
        clock.advance(2)
        assert poll_one(make_queue()).attempts == 2

    @pytest.mark.parametrize("bad", [object(), {1, 2}, b"bytes", float("nan")])
    def test_what_json_cannot_carry_is_refused_and_the_one_before_stays(
        self, saving: AnyQueue, bad: Any
    ) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        saving.save_checkpoint(message, "good")
        with pytest.raises(HoldfastError, match="checkpoint"):
            saving.save_checkpoint(message, bad)
        saving.nack(message, delay_seconds=0)
        assert saving.load_checkpoint(poll_one(saving)) == "good"

    def test_one_over_the_limit_is_refused_and_the_one_before_stays(
        self, saving: AnyQueue
    ) -> None:
        saving.push(AnyMessage())
        message = poll_one(saving)
        saving.save_checkpoint(message, "good")
        with pytest.raises(MessageTooLarge, match="checkpoint"):
            saving.save_checkpoint(message, "x" * MAX_BYTES)
        saving.nack(message, delay_seconds=0)
        assert saving.load_checkpoint(poll_one(saving)) == "good"

    def test_a_message_that_was_not_polled_has_none(self, saving: AnyQueue) -> None:
        message = AnyMessage()
        saving.push(message)
        with pytest.raises(NotLeased):
            saving.load_checkpoint(message)
