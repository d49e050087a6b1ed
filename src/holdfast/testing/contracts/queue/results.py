"""ResultPromises: what an attempt returned can be read once the message is completed."""

from typing import Any

import pytest

from holdfast.errors import HoldfastError, LeaseLost, MessageTooLarge, Unsupported
from holdfast.queue.manager import MAX_RESULT_BYTES
from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    AnyQueue,
    MakeQueue,
    poll_one,
    push_and_poll,
    require_capabilities,
)


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
