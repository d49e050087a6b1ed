"""SettlePromises: the holder acks, nacks, releases or dead-letters a message once."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import HoldfastError, LeaseLost, NotLeased
from holdfast.lease.backoff import Backoff
from holdfast.lease.lease import LeaseState
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    MUCH_LATER,
    SETTLE,
    VERBS,
    AnyQueue,
    MakeQueue,
    assert_completed,
    get_fence,
    poll_all,
    poll_one,
    push_and_poll,
    require_capabilities,
)

COPIES: dict[str, Callable[[Any], Any]] = {
    "model_copy": lambda message: message.model_copy(),
    "deep model_copy": lambda message: message.model_copy(deep=True),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda message: pickle.loads(pickle.dumps(message)),
    "JSON": lambda message: AnyMessage.model_validate_json(message.model_dump_json()),
    "dict": lambda message: AnyMessage.model_validate(message.model_dump()),
}
DIFFERENT_VERBS = [(first, second) for first in SETTLE for second in SETTLE if first != second]


class SettlePromises:
    """Promises about settling a message."""

    @pytest.mark.parametrize("verb", SETTLE)
    def test_settling_twice_the_same_way_is_settling_once(
        self, queue: AnyQueue, verb: str, contents: Callable[[AnyQueue], object]
    ) -> None:
        message = push_and_poll(queue)
        SETTLE[verb](queue, message)
        before = contents(queue)
        SETTLE[verb](queue, message)
        assert contents(queue) == before
        assert get_lease(message).state is LeaseState.RELEASED

    @pytest.mark.parametrize("verb", SETTLE)
    def test_settling_again_does_not_affect_the_next_holder(
        self, queue: AnyQueue, verb: str, make_queue: MakeQueue
    ) -> None:
        message = push_and_poll(queue)
        SETTLE[verb](queue, message)
        queue.redrive()
        others = make_queue().poll()
        SETTLE[verb](queue, message)
        assert queue.stats().leased == len(others)

    @pytest.mark.parametrize(("first", "second"), DIFFERENT_VERBS)
    def test_settling_another_way_afterwards_is_refused(
        self,
        queue: AnyQueue,
        first: str,
        second: str,
        contents: Callable[[AnyQueue], object],
    ) -> None:
        message = push_and_poll(queue, id="a")
        SETTLE[first](queue, message)
        before = contents(queue)
        with pytest.raises(NotLeased, match=r"'a' was .* already"):
            SETTLE[second](queue, message)
        assert contents(queue) == before

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("copy_kind", COPIES)
    def test_a_copy_of_a_polled_message_holds_no_lease(
        self,
        queue: AnyQueue,
        verb: str,
        copy_kind: str,
        contents: Callable[[AnyQueue], object],
    ) -> None:
        message = push_and_poll(queue, id="a")
        before = contents(queue)
        with pytest.raises(NotLeased, match="'a' holds no lease"):
            VERBS[verb](queue, COPIES[copy_kind](message))
        assert contents(queue) == before
        queue.ack(message)

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_message_that_was_only_pushed_cannot_be_settled(
        self, queue: AnyQueue, verb: str
    ) -> None:
        message = AnyMessage()
        queue.push(message)
        with pytest.raises(NotLeased):
            VERBS[verb](queue, message)
        assert queue.stats().ready == 1

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_message_of_another_queue_cannot_be_settled_here(
        self, queue: AnyQueue, verb: str, make_other_queue: MakeQueue
    ) -> None:
        if verb == "save_checkpoint":
            require_capabilities(queue, "checkpoint")
        other = make_other_queue()
        for each in (queue, other):
            each.push(AnyMessage(id="same"))
        poll_one(queue)
        message = poll_one(other)
        with pytest.raises(HoldfastError):
            VERBS[verb](queue, message)
        for each in (queue, other):
            assert each.stats().leased == 1

    # -- many at once

    def test_many_are_acked_at_once(self, queue: AnyQueue) -> None:
        queue.push_many(AnyMessage() for _ in range(25))
        queue.ack_many(poll_all(queue))
        assert_completed(queue, 25)
        assert queue.stats().leased == 0

    def test_acking_no_messages_does_nothing(self, queue: AnyQueue) -> None:
        queue.ack_many([])

    def test_one_lost_lease_among_many_acks_is_raised_after_the_others_are_acked(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        queue.push(AnyMessage(id="lost"))
        [lost] = queue.poll()
        clock.advance(LEASE - 1)
        queue.push_many([AnyMessage(id="b"), AnyMessage(id="c")])
        first, last = poll_all(queue)
        clock.advance(2)
        poll_one(make_queue())
        with pytest.raises(LeaseLost, match="'lost'"):
            queue.ack_many([first, lost, last])
        assert_completed(queue, 2)
        assert queue.stats().leased == 1

    def test_the_same_message_twice_among_many_acks_is_acked_once(
        self, queue: AnyQueue
    ) -> None:
        message = push_and_poll(queue)
        queue.ack_many([message, message])
        assert_completed(queue, 1)

    # -- nack

    @pytest.mark.requirement("R001-012", "R001-044")
    def test_a_nacked_message_comes_back_after_its_delay_as_the_next_attempt(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.nack(push_and_poll(queue), delay_seconds=10)
        if "exact_counts" in queue.capabilities:
            assert (queue.stats().delayed, queue.stats().leased) == (1, 0)
        clock.advance(9)
        assert queue.poll() == []
        clock.advance(2)
        assert poll_one(queue).attempts == 2

    @pytest.mark.parametrize("delay_seconds", [0, -3])
    def test_a_nack_without_delay_brings_it_back_at_once(
        self, queue: AnyQueue, delay_seconds: float
    ) -> None:
        queue.nack(push_and_poll(queue), delay_seconds=delay_seconds)
        assert poll_one(queue).attempts == 2

    def test_a_nack_without_a_delay_waits_by_the_backoff(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        # The delay is between half of 4, 8 and 16 seconds and all of it.
        queue = make_queue(backoff=Backoff(first_seconds=4), max_attempts=10)
        queue.push(AnyMessage())
        for ceiling in (4, 8, 16):
            queue.nack(poll_one(queue))
            clock.advance(ceiling / 2 - 0.5)
            assert queue.poll() == []
            clock.advance(ceiling / 2 + 1)
            assert queue.stats().ready == 1

    def test_the_backoff_never_exceeds_its_maximum(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        backoff = Backoff(first_seconds=4, factor=10, max_seconds=6)
        queue = make_queue(backoff=backoff, max_attempts=100)
        queue.push(AnyMessage())
        for _ in range(8):
            queue.nack(poll_one(queue))
            clock.advance(7)
        assert poll_one(queue).attempts == 9

    # -- release

    def test_a_released_message_is_there_at_once_and_not_charged(self, queue: AnyQueue) -> None:
        first = push_and_poll(queue)
        queue.release(first)
        second = poll_one(queue)
        assert second.attempts == (1 if "refund" in queue.capabilities else 2)
        assert get_fence(second) > get_fence(first)

    def test_no_number_of_releases_uses_up_the_attempts(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_attempts=1)
        require_capabilities(queue, "refund")
        queue.push(AnyMessage())
        for _ in range(10):
            queue.release(poll_one(queue))
        queue.ack(poll_one(queue))
        assert_completed(queue, 1)

    def test_attempts_before_a_release_stay_charged(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "refund")
        queue.nack(push_and_poll(queue), delay_seconds=0)
        queue.release(poll_one(queue))
        assert poll_one(queue).attempts == 2

    # -- what errors say

    def test_errors_do_not_show_the_message_body(
        self, queue: AnyQueue, clock: ManualClock, make_queue: MakeQueue
    ) -> None:
        message = push_and_poll(queue, card="4111-1111")
        clock.advance(LEASE + 1)
        poll_one(make_queue())
        for verb in VERBS.values():
            with pytest.raises(LeaseLost) as caught:
                verb(queue, message)
            assert "4111" not in str(caught.value)
            assert "\n" not in str(caught.value)

    def test_a_settled_message_is_settled_for_good(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(queue, "find")
        for verb in ("ack", "dead_letter"):
            queue.push(AnyMessage(id=verb))
            SETTLE[verb](queue, poll_one(queue))
        clock.advance(MUCH_LATER)
        assert poll_all(queue) == []
        states = [queue.find(verb)[0].state.value for verb in ("ack", "dead_letter")]
        assert states == ["completed", "failed"]
