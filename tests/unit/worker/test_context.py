"""The context of a handler in the process that holds its lease."""

from threading import Event
from typing import Any

import pytest

from holdfast.errors import LeaseLost
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.runner import Context


class CountingQueue(MemoryQueue[AnyMessage]):
    loads = 0

    def load_checkpoint(self, message: AnyMessage) -> Any:
        self.loads += 1
        return super().load_checkpoint(message)


class Ground:
    """A queue with one message, and the context of its current attempt."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.queue = CountingQueue(lease_seconds=60.0, clock=clock)
        self.queue.push(AnyMessage(id="m"))
        self.next()

    def next(self) -> Context:
        [message] = self.queue.poll()
        self.lease = get_lease(message)
        self.message = message
        self.ctx = Context(self.queue, message, self.lease, Event(), self.clock)
        return self.ctx


@pytest.fixture
def ground() -> Ground:
    return Ground(ManualClock())


def test_the_context_shows_the_attempt_and_the_seconds_left(ground: Ground) -> None:
    ctx = ground.ctx
    assert (ctx.message_id, ctx.attempt, ctx.fence) == ("m", 1, 1)
    assert ctx.deadline == ground.lease.deadline
    ground.clock.advance(20)
    assert ctx.seconds_left == pytest.approx(40)
    ground.queue.extend(ground.message)
    assert ctx.seconds_left == pytest.approx(60)
    assert ctx.deadline == ground.lease.deadline


def test_work_given_back_has_a_new_fence_but_the_same_attempt(ground: Ground) -> None:
    ground.queue.release(ground.message)
    ctx = ground.next()
    assert (ctx.attempt, ctx.fence) == (1, 2)


def test_a_beat_is_recorded_in_the_lease(ground: Ground) -> None:
    ground.clock.advance(20)
    ground.ctx.beat(progress=0.25)
    assert ground.lease.last_beat_at == ground.clock.monotonic()
    assert (ground.ctx.progress, ground.lease.progress) == (0.25, 0.25)
    ground.ctx.beat()
    assert (ground.ctx.progress, ground.lease.progress) == (0.25, 0.25)


@pytest.mark.parametrize("progress", ["half", float("nan"), float("inf"), 10**400, object()])
def test_a_progress_that_is_no_usable_number_is_not_stored(
    ground: Ground, progress: Any
) -> None:
    ground.ctx.beat(progress)
    assert (ground.lease.has_beaten, ground.lease.progress) == (True, None)


def test_a_checkpoint_is_for_the_next_attempt_also_when_this_one_was_not_charged(
    ground: Ground,
) -> None:
    ground.ctx.beat(checkpoint={"step": 1})
    assert ground.ctx.checkpoint is None  # it shows only what an earlier attempt saved
    ground.queue.release(ground.message)
    assert ground.next().checkpoint == {"step": 1}


def test_a_checkpoint_is_loaded_once_and_only_when_there_may_be_one(ground: Ground) -> None:
    assert ground.ctx.checkpoint is None
    assert ground.queue.loads == 0
    ground.queue.nack(ground.message, delay_seconds=0)
    ctx = ground.next()
    assert (ctx.checkpoint, ctx.checkpoint) == (None, None)
    assert ground.queue.loads == 1


def test_after_the_deadline_the_context_reports_the_loss_without_a_queue_call(
    ground: Ground,
) -> None:
    lost = ground.ctx.lost
    ground.ctx.raise_if_lost()
    ground.clock.advance(60)
    with pytest.raises(LeaseLost):
        ground.ctx.raise_if_lost()
    assert lost.is_set()
    assert ground.ctx.seconds_left == 0


def test_a_handler_with_a_lost_lease_can_neither_beat_nor_save(ground: Ground) -> None:
    ground.lease.lose("taken over")
    for say in (ground.ctx.beat, lambda: ground.ctx.beat(checkpoint=1)):
        with pytest.raises(LeaseLost, match="taken over"):
            say()
    assert ground.ctx.lost.is_set()
