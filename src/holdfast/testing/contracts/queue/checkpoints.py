"""What is kept with a message: checkpoints for the next attempt, and results."""

from typing import Any

import pytest

from holdfast.errors import HoldfastError, LeaseLost, MessageTooLarge, NotLeased, Unsupported
from holdfast.queue.manager import MAX_RESULT_BYTES
from holdfast.queue.message import MAX_BYTES, AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    SETTLE,
    AnyQueue,
    MakeQueue,
    poll_one,
    push_and_poll,
    require_capabilities,
)


class CheckpointPromises:
    """Promises about saving and loading checkpoints."""

    @pytest.fixture
    def checkpointing(self, queue: AnyQueue) -> AnyQueue:
        """A queue that can store checkpoints."""
        require_capabilities(queue, "checkpoint")
        return queue

    def test_a_first_attempt_finds_no_checkpoint(self, checkpointing: AnyQueue) -> None:
        checkpointing.push(AnyMessage())
        assert checkpointing.load_checkpoint(poll_one(checkpointing)) is None

    @pytest.mark.parametrize(
        "checkpoint", [{"page": 7, "seen": ["ä", None, 1.5]}, [1], "text", 0, False, "", {}]
    )
    def test_the_next_attempt_finds_what_was_saved_before_the_crash(
        self,
        checkpointing: AnyQueue,
        clock: ManualClock,
        make_queue: MakeQueue,
        checkpoint: Any,
    ) -> None:
        checkpointing.save_checkpoint(push_and_poll(checkpointing), checkpoint)
        clock.advance(LEASE + 1)
        successor = make_queue()
        assert successor.load_checkpoint(poll_one(successor)) == checkpoint

    def test_the_last_of_several_counts(
        self, checkpointing: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        message = push_and_poll(checkpointing)
        for page in range(5):
            checkpointing.save_checkpoint(message, page)
        clock.advance(LEASE + 1)
        successor = make_queue()
        assert successor.load_checkpoint(poll_one(successor)) == 4

    @pytest.mark.parametrize("verb", ["nack", "release"])
    def test_a_checkpoint_survives_a_nack_or_release(
        self, checkpointing: AnyQueue, verb: str
    ) -> None:
        message = push_and_poll(checkpointing)
        checkpointing.save_checkpoint(message, "half-way")
        SETTLE[verb](checkpointing, message)
        assert checkpointing.load_checkpoint(poll_one(checkpointing)) == "half-way"

    def test_a_checkpoint_survives_an_attempt_that_saved_nothing(
        self, checkpointing: AnyQueue, clock: ManualClock
    ) -> None:
        checkpointing.push(AnyMessage())
        checkpointing.save_checkpoint(poll_one(checkpointing), "half-way")
        for _ in range(2):
            clock.advance(LEASE + 1)
            assert checkpointing.load_checkpoint(poll_one(checkpointing)) == "half-way"

    def test_a_checkpoint_survives_many_releases_of_unstarted_work(
        self, checkpointing: AnyQueue
    ) -> None:
        message = push_and_poll(checkpointing)
        checkpointing.save_checkpoint(message, "half-way")
        checkpointing.release(message)
        for _ in range(150):
            checkpointing.release(poll_one(checkpointing))
        assert checkpointing.load_checkpoint(poll_one(checkpointing)) == "half-way"

    def test_a_checkpoint_survives_dead_letter_and_redrive(
        self, checkpointing: AnyQueue
    ) -> None:
        message = push_and_poll(checkpointing)
        checkpointing.save_checkpoint(message, "half-way")
        checkpointing.dead_letter(message, "no use")
        checkpointing.redrive()
        assert checkpointing.load_checkpoint(poll_one(checkpointing)) == "half-way"

    def test_an_attempt_loads_what_came_before_it_not_what_it_saved_itself(
        self, checkpointing: AnyQueue
    ) -> None:
        message = push_and_poll(checkpointing)
        checkpointing.save_checkpoint(message, "first")
        assert checkpointing.load_checkpoint(message) is None
        checkpointing.nack(message, delay_seconds=0)
        message = poll_one(checkpointing)
        checkpointing.save_checkpoint(message, "second")
        assert checkpointing.load_checkpoint(message) == "first"

    def test_a_checkpoint_is_gone_after_the_ack(self, checkpointing: AnyQueue) -> None:
        require_capabilities(checkpointing, "find")
        message = push_and_poll(checkpointing, id="a")
        checkpointing.save_checkpoint(message, "half-way")
        checkpointing.nack(message, delay_seconds=0)
        checkpointing.ack(poll_one(checkpointing))
        [view] = checkpointing.find("a")
        assert view.checkpoint is None

    def test_a_later_push_of_the_id_has_no_checkpoint(self, checkpointing: AnyQueue) -> None:
        message = push_and_poll(checkpointing, id="a")
        checkpointing.save_checkpoint(message, "half-way")
        checkpointing.push(AnyMessage(id="a"))
        assert checkpointing.load_checkpoint(poll_one(checkpointing)) is None

    def test_operators_see_the_newest_checkpoint(self, checkpointing: AnyQueue) -> None:
        require_capabilities(checkpointing, "find")
        message = push_and_poll(checkpointing, id="a")
        checkpointing.save_checkpoint(message, "first")
        checkpointing.nack(message, delay_seconds=0)
        checkpointing.save_checkpoint(poll_one(checkpointing), "second")
        [view] = checkpointing.find("a")
        assert view.checkpoint == "second"

    def test_saving_a_checkpoint_does_not_extend_the_lease(
        self, checkpointing: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        message = push_and_poll(checkpointing)
        clock.advance(LEASE - 1)
        checkpointing.save_checkpoint(message, "half-way")
        clock.advance(2)
        assert poll_one(make_queue()).attempts == 2

    @pytest.mark.parametrize("bad", [object(), {1, 2}, b"bytes", float("nan")])
    def test_a_checkpoint_json_cannot_represent_is_refused_and_the_previous_one_stays(
        self, checkpointing: AnyQueue, bad: Any
    ) -> None:
        message = push_and_poll(checkpointing)
        checkpointing.save_checkpoint(message, "good")
        with pytest.raises(HoldfastError, match="checkpoint"):
            checkpointing.save_checkpoint(message, bad)
        checkpointing.nack(message, delay_seconds=0)
        assert checkpointing.load_checkpoint(poll_one(checkpointing)) == "good"

    def test_a_checkpoint_over_the_limit_is_refused_and_the_previous_one_stays(
        self, checkpointing: AnyQueue
    ) -> None:
        message = push_and_poll(checkpointing)
        checkpointing.save_checkpoint(message, "good")
        with pytest.raises(MessageTooLarge, match="checkpoint"):
            checkpointing.save_checkpoint(message, "x" * MAX_BYTES)
        checkpointing.nack(message, delay_seconds=0)
        assert checkpointing.load_checkpoint(poll_one(checkpointing)) == "good"

    def test_a_message_that_was_not_polled_has_no_checkpoint(
        self, checkpointing: AnyQueue
    ) -> None:
        message = AnyMessage()
        checkpointing.push(message)
        with pytest.raises(NotLeased):
            checkpointing.load_checkpoint(message)


class ResultPromises:
    """Promises about saving and loading results."""

    @pytest.fixture
    def keeping(self, queue: AnyQueue) -> AnyQueue:
        """A queue that can keep results."""
        require_capabilities(queue, "results")
        return queue

    def test_a_queue_without_results_says_so(self, queue: AnyQueue) -> None:
        if "results" not in queue.capabilities:
            with pytest.raises(Unsupported, match="results"):
                queue.load_result("a")

    @pytest.mark.parametrize("result", [{"pages": [1, "ä", None]}, [1.5], "text", 0, False, ""])
    def test_a_result_can_be_read_after_the_ack(
        self, keeping: AnyQueue, make_queue: MakeQueue, result: Any
    ) -> None:
        complete(keeping, "a", result)
        assert make_queue().load_result("a") == result

    def test_there_is_no_result_before_the_ack(self, keeping: AnyQueue) -> None:
        message = push_and_poll(keeping, id="a")
        for result in (0, 1):  # the last of several counts
            keeping.save_result(message, result)
        assert keeping.load_result("a") is None
        keeping.ack(message)
        assert keeping.load_result("a") == 1

    def test_an_unknown_id_has_no_result(self, keeping: AnyQueue) -> None:
        assert keeping.load_result("a") is None

    def test_the_newest_push_of_an_id_counts(self, keeping: AnyQueue) -> None:
        complete(keeping, "a", "old")
        complete(keeping, "a", "new")
        assert keeping.load_result("a") == "new"

    def test_ids_have_results_of_their_own(
        self, keeping: AnyQueue, make_other_queue: MakeQueue
    ) -> None:
        complete(keeping, "a", "of a")
        complete(keeping, "b", "of b")
        assert [keeping.load_result(id) for id in "ab"] == ["of a", "of b"]
        assert make_other_queue().load_result("a") is None

    def test_the_result_of_an_attempt_that_did_not_finish_does_not_count(
        self, keeping: AnyQueue
    ) -> None:
        message = push_and_poll(keeping, id="a")
        keeping.save_result(message, "of the first attempt")
        keeping.nack(message, delay_seconds=0)
        keeping.ack(poll_one(keeping))
        assert keeping.load_result("a") is None

    def test_a_stale_holder_cannot_replace_the_result(
        self, keeping: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        frozen = make_queue(clock=ManualClock(clock.monotonic(), time=clock.time()))
        keeping.push(AnyMessage(id="a"))
        stale = poll_one(frozen)
        clock.advance(LEASE + 1)
        message = poll_one(keeping)
        keeping.save_result(message, "of the holder")
        with pytest.raises(LeaseLost):
            frozen.save_result(stale, "of the stale holder")
        keeping.ack(message)
        assert keeping.load_result("a") == "of the holder"

    def test_a_result_is_purged_with_its_message(
        self, keeping: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(keeping, "purge")
        complete(keeping, "old", 1)
        clock.advance(100)
        complete(keeping, "new", 2)
        keeping.purge(50)
        assert [keeping.load_result(id) for id in ("old", "new")] == [None, 2]
        clock.advance(100)
        keeping.purge(50)
        assert keeping.load_result("new") is None

    @pytest.mark.parametrize("bad", [object(), {1, 2}, b"bytes", float("nan")])
    def test_a_result_json_cannot_represent_is_refused_and_the_lease_is_kept(
        self, keeping: AnyQueue, bad: Any
    ) -> None:
        message = push_and_poll(keeping, id="a")
        with pytest.raises(HoldfastError, match="result"):
            keeping.save_result(message, bad)
        keeping.ack(message)
        assert keeping.load_result("a") is None

    def test_a_result_over_the_limit_is_refused_and_the_lease_is_kept(
        self, keeping: AnyQueue
    ) -> None:
        message = push_and_poll(keeping, id="a")
        with pytest.raises(MessageTooLarge, match="result"):
            keeping.save_result(message, "x" * MAX_RESULT_BYTES)
        keeping.save_result(message, "x" * (MAX_RESULT_BYTES - 2))
        keeping.ack(message)


def complete(queue: AnyQueue, message_id: str, result: Any) -> None:
    """Push a message, and complete it with a result."""
    message = push_and_poll(queue, id=message_id)
    queue.save_result(message, result)
    queue.ack(message)
