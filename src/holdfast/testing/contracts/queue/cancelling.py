"""CancelPromises: an operator can stop a message that waits or is being worked on."""

from collections.abc import Callable

import pytest

from holdfast.errors import LeaseLost
from holdfast.lease.lease import LeaseState
from holdfast.queue.manager import MessageState
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    MUCH_LATER,
    VERBS,
    AnyQueue,
    Inject,
    MakeQueue,
    assert_completed,
    get_dead_letter,
    get_fence,
    poll_all,
    poll_one,
    push_and_poll,
    require_capabilities,
)

REASON = "cancelled by an operator"


class CancelPromises:
    """Promises about `cancel`."""

    @pytest.fixture
    def cancelling(self, queue: AnyQueue) -> AnyQueue:
        """A queue that can cancel."""
        require_capabilities(queue, "cancel")
        return queue

    @pytest.mark.parametrize("delay_seconds", [0, 60])
    def test_a_cancelled_message_that_waited_is_a_dead_letter(
        self, cancelling: AnyQueue, clock: ManualClock, delay_seconds: float
    ) -> None:
        cancelling.push(AnyMessage(id="a", text="hello"), delay_seconds=delay_seconds)
        assert cancelling.cancel("a") == 1
        clock.advance(MUCH_LATER)
        assert cancelling.poll() == []
        view = get_dead_letter(cancelling)
        assert (view.id, view.state, view.attempts) == ("a", MessageState.FAILED, 0)
        assert view.reason == REASON
        assert view.body is not None
        assert view.body["text"] == "hello"
        stats = cancelling.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.failed) == (0, 0, 0, 1)

    def test_a_cancelled_message_that_was_leased_is_a_dead_letter(
        self, cancelling: AnyQueue, clock: ManualClock
    ) -> None:
        push_and_poll(cancelling, id="a")
        assert cancelling.cancel("a") == 1
        view = get_dead_letter(cancelling)
        assert (view.id, view.attempts, view.reason) == ("a", 1, REASON)
        assert (view.holder, cancelling.stats().leased) == (None, 0)
        clock.advance(MUCH_LATER)
        assert cancelling.poll() == []

    @pytest.mark.parametrize("verb", VERBS)
    def test_the_holder_of_a_cancelled_message_changes_nothing_and_is_told(
        self,
        make_queue: MakeQueue,
        verb: str,
        contents: Callable[[AnyQueue], object],
    ) -> None:
        """Also its dead-lettering is refused, or its reason would replace the operator's."""
        holder, operator = make_queue(), make_queue()
        require_capabilities(operator, "cancel")
        message = push_and_poll(holder, id="a")
        assert operator.cancel("a") == 1
        before = contents(operator)
        with pytest.raises(LeaseLost):
            VERBS[verb](holder, message)
        assert contents(operator) == before
        assert get_lease(message).state is LeaseState.LOST
        assert get_lease(message).lost.is_set()

    def test_a_redriven_message_waits_until_its_holder_cannot_trust_its_lease(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        """The holder may learn of the cancel only by its next renewal."""
        holder, other = make_queue(), make_queue()
        require_capabilities(other, "cancel")
        message = push_and_poll(holder, id="a")
        clock.advance(LEASE / 4)
        holder.extend(message, LEASE)
        clock.advance(LEASE / 4)
        other.cancel("a")
        assert other.redrive() == 1
        lease = get_lease(message)
        while lease.live and clock.monotonic() < lease.deadline:
            assert other.poll() == []
            clock.advance(LEASE / 8)
        clock.advance(LEASE / 4)
        assert poll_one(other).id == "a"

    def test_the_holder_of_a_cancelled_message_is_refused_after_a_redrive_too(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        holder, successor = make_queue(), make_queue()
        require_capabilities(successor, "cancel", "fence")
        message = push_and_poll(holder, id="a")
        successor.cancel("a")
        assert successor.redrive() == 1
        clock.advance(LEASE + 1)
        again = poll_one(successor)
        assert again.attempts == message.attempts
        assert get_fence(again) > get_fence(message) + 1
        with pytest.raises(LeaseLost):
            holder.ack(message)
        successor.ack(again)
        assert_completed(successor, 1)

    def test_a_message_whose_lease_has_ended_can_be_cancelled(
        self, cancelling: AnyQueue, clock: ManualClock
    ) -> None:
        push_and_poll(cancelling, id="a")
        clock.advance(LEASE + 1)
        assert cancelling.cancel("a") == 1
        assert cancelling.poll() == []

    def test_a_message_that_waits_after_a_retry_can_be_cancelled(
        self, make_queue: MakeQueue
    ) -> None:
        queue = make_queue(max_attempts=1)
        require_capabilities(queue, "cancel")
        queue.nack(push_and_poll(queue, id="a"), delay_seconds=0)
        assert queue.cancel("a") == 1
        view = get_dead_letter(queue)
        assert (view.attempts, view.reason) == (1, REASON)

    def test_completed_and_dead_messages_are_left_alone(
        self, cancelling: AnyQueue, contents: Callable[[AnyQueue], object]
    ) -> None:
        cancelling.push_many(AnyMessage(id=each) for each in ("done", "dead"))
        held = {message.id: message for message in poll_all(cancelling)}
        cancelling.ack(held["done"])
        cancelling.dead_letter(held["dead"], "no use")
        before = contents(cancelling)
        assert (cancelling.cancel("done"), cancelling.cancel("dead")) == (0, 0)
        assert contents(cancelling) == before

    def test_an_unknown_id_cancels_nothing(self, cancelling: AnyQueue) -> None:
        cancelling.push(AnyMessage(id="a"))
        assert [cancelling.cancel(each) for each in ("b", "", "A", "a ", "%", "a%")] == [0] * 6
        assert poll_one(cancelling).id == "a"

    def test_cancelling_twice_does_nothing_more(
        self, cancelling: AnyQueue, contents: Callable[[AnyQueue], object]
    ) -> None:
        cancelling.push(AnyMessage(id="a"))
        assert cancelling.cancel("a") == 1
        before = contents(cancelling)
        assert cancelling.cancel("a") == 0
        assert contents(cancelling) == before

    def test_every_push_of_the_id_is_cancelled_and_no_other(self, cancelling: AnyQueue) -> None:
        push_and_poll(cancelling, id="same", which=1)
        cancelling.push(AnyMessage(id="same", which=2))
        cancelling.push(AnyMessage(id="same", which=3), delay_seconds=60)
        cancelling.push(AnyMessage(id="other"))
        assert cancelling.cancel("same") == 3
        assert {view.id for view in cancelling.dead_letters()} == {"same"}
        assert poll_one(cancelling).id == "other"

    def test_a_malformed_message_can_be_cancelled(
        self, make_queue: MakeQueue, inject: Inject
    ) -> None:
        queue = make_queue()
        require_capabilities(queue, "cancel", "peek")
        inject(queue, b"{ not JSON")
        [view] = queue.peek(MessageState.PENDING)
        assert queue.cancel(view.id) == 1
        assert get_dead_letter(queue).reason == REASON

    def test_a_redrive_brings_a_cancelled_message_back(self, cancelling: AnyQueue) -> None:
        require_capabilities(cancelling, "redrive_by_id")
        cancelling.push(AnyMessage(id="a", text="hello"))
        for _ in range(3):  # no name or number of it is used twice
            assert cancelling.cancel("a") == 1
            assert cancelling.redrive("a") == 1
        message = poll_one(cancelling)
        assert (message.text, message.attempts) == ("hello", 1)
        cancelling.ack(message)
        assert_completed(cancelling, 1)

    def test_a_redriven_message_goes_on_from_its_checkpoint(
        self, cancelling: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(cancelling, "checkpoint")
        cancelling.save_checkpoint(push_and_poll(cancelling, id="a"), {"page": 7})
        cancelling.cancel("a")
        cancelling.redrive()
        clock.advance(LEASE + 1)
        assert cancelling.load_checkpoint(poll_one(cancelling)) == {"page": 7}

    def test_the_history_says_that_it_was_cancelled_and_where_it_ran(
        self, cancelling: AnyQueue
    ) -> None:
        require_capabilities(cancelling, "find", "history")
        cancelling.push(AnyMessage(id="a"))
        cancelling.cancel("a")
        cancelling.redrive()
        poll_one(cancelling)
        [held] = cancelling.find("a")
        assert held.holder is not None
        cancelling.cancel("a")
        [view] = cancelling.find("a")
        waited, redriven, ran = view.past
        assert (waited.outcome, waited.attempt, waited.worker_id) == ("cancelled", 0, "")
        assert (waited.reason, redriven.outcome) == (REASON, "redriven")
        assert (ran.outcome, ran.attempt) == ("cancelled", 1)
        assert ran.worker_id == held.holder.worker_id

    @pytest.mark.parametrize("is_leased", [False, True])
    def test_a_cancelled_id_may_be_pushed_again(
        self, make_queue: MakeQueue, is_leased: bool
    ) -> None:
        require_capabilities(make_queue(), "cancel", "dedupe")
        queue = make_queue(dedupe=True)
        queue.push(AnyMessage(id="a", which=1))
        if is_leased:
            poll_one(queue)
        assert queue.cancel("a") == 1
        queue.push(AnyMessage(id="a", which=2))
        queue.push(AnyMessage(id="a", which=3))
        assert [message.which for message in poll_all(queue)] == [2]
