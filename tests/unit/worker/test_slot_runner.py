"""SlotRunner enforces the limits of a handler in the thread of its slot when they are due."""

from collections.abc import Callable, Iterator
from math import inf

import pytest

from holdfast.events import Events
from holdfast.lease.keeper import LeaseKeeper
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.runner import DirectExecutor, SlotRunner
from holdfast.worker.settle import ClaimedMessage, InFlight


class Slots:
    """A runner whose threads are not started, with the messages that its slots hold."""

    def __init__(self, limits: LivenessLimits, *, in_child: bool = False) -> None:
        self.clock, events = ManualClock(), Events()
        self.queue: MemoryQueue[AnyMessage] = MemoryQueue(clock=self.clock, lease_seconds=600)
        self.in_flight: InFlight[AnyMessage] = InFlight(self.queue, events, self.clock)
        self.fetcher = Fetcher(LeaseKeeper(self.clock, events), self.in_flight)
        self.runner = SlotRunner(
            2,
            lambda: DirectExecutor(print, lambda *_: None),  # type: ignore[arg-type]
            self.fetcher,
            self.in_flight,
            find_limits=lambda _: None if in_child else limits,
            strictest=limits,
        )

    def start_message(self, wait_seconds: float = 0.0) -> ClaimedMessage[AnyMessage]:
        """Claim a message, and start it after it has waited."""
        self.claim(1)
        self.clock.advance(wait_seconds)
        return self.take()

    def claim(self, count: int) -> None:
        """Claim new messages, which wait to be started."""
        self.queue.push_many([AnyMessage() for _ in range(count)])
        self.fetcher.fill(count)

    def take(self) -> ClaimedMessage[AnyMessage]:
        """Start the next message that waits."""
        claimed = self.fetcher.take()
        assert claimed is not None
        return claimed

    def watch_after(self, seconds: float) -> float:
        self.clock.advance(seconds)
        return self.runner.watch(self.clock.monotonic())


TIMEOUT = LivenessLimits(timeout_seconds=10.0)
STALL = LivenessLimits(stall_seconds=5.0)


def test_the_next_check_is_when_the_oldest_message_times_out() -> None:
    slots = Slots(TIMEOUT)
    first = slots.start_message()
    assert slots.watch_after(4.0) == pytest.approx(6.0)
    second = slots.start_message()
    assert slots.watch_after(3.0) == pytest.approx(3.0)
    assert (first.lease.live, second.lease.live) == (True, True)


def test_work_loses_its_lease_at_its_own_time_limit() -> None:
    slots = Slots(TIMEOUT)
    first = slots.start_message()
    slots.watch_after(4.0)
    second = slots.start_message()
    assert slots.watch_after(6.0) == pytest.approx(4.0)
    assert (first.lease.live, second.lease.live) == (False, True)
    # A message may be claimed right after the check.
    assert slots.watch_after(4.0) == pytest.approx(10.0)
    assert not second.lease.live


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(TIMEOUT, "timed out after 10 s"), (STALL, "stalled: no beat for 5 s")],
)
def test_a_limit_counts_from_the_start_of_the_work(limits: LivenessLimits, reason: str) -> None:
    slots = Slots(limits)
    claimed = slots.start_message(wait_seconds=1.5)
    slots.watch_after(4.9)
    assert claimed.lease.live
    slots.watch_after(5.1)
    assert claimed.lease.reason == reason


def test_the_time_limit_counts_from_the_start_of_the_work() -> None:
    slots = Slots(TIMEOUT)
    claimed = slots.start_message(wait_seconds=8.0)
    assert slots.watch_after(9.0) == pytest.approx(1.0)
    assert claimed.lease.live


def test_a_stall_counts_from_the_start_of_the_work() -> None:
    slots = Slots(STALL)
    slots.claim(2)
    slots.clock.advance(4.0)
    claimed = slots.take()
    slots.watch_after(4.0)
    assert claimed.lease.live
    slots.watch_after(2.0)
    assert claimed.lease.reason == "stalled: no beat for 5 s"
    assert all(ready.lease.live for ready in slots.in_flight.ready)


def test_a_beat_postpones_the_stall() -> None:
    slots = Slots(STALL)
    claimed = slots.start_message()
    slots.clock.advance(3.0)
    claimed.lease.beat(slots.clock.monotonic())
    assert slots.watch_after(3.0) == pytest.approx(2.0)
    assert claimed.lease.live


def test_without_a_limit_there_is_no_next_check() -> None:
    slots = Slots(LivenessLimits())
    claimed = slots.start_message()
    assert slots.watch_after(500.0) == inf
    assert claimed.lease.live


def test_a_message_that_waits_to_be_started_has_no_time_limit() -> None:
    slots = Slots(TIMEOUT)
    claimed = slots.start_message()
    claimed.started_at = inf
    slots.watch_after(11.0)
    assert claimed.lease.live


def test_the_work_of_a_child_is_left_to_its_watchdog() -> None:
    slots = Slots(TIMEOUT, in_child=True)
    claimed = slots.start_message()
    slots.watch_after(11.0)
    slots.runner.cancel_running()
    assert claimed.lease.live


def test_nothing_is_started_after_the_run_has_given_up() -> None:
    """It would run unnoticed, because `cancel_running` has given up the others before."""
    slots = Slots(TIMEOUT)
    claimed = slots.start_message()
    slots.in_flight.give_up.set()
    slots.runner._handle(DirectExecutor(pytest.fail, slots.in_flight.make_context), claimed)
    assert slots.in_flight.make_report().given_back == 1


def test_an_executor_that_cannot_be_prepared_is_tried_until_the_run_is_over() -> None:
    slots = Slots(TIMEOUT)
    slots.clock.auto_advance = True
    slots.queue.push(AnyMessage())
    executor = DirectExecutor(pytest.fail, slots.in_flight.make_context)
    steps: Iterator[Callable[[], object]] = iter([int, slots.fetcher.close, pytest.fail])

    def prepare() -> bool:
        next(steps)()
        raise OSError("no more processes")

    executor.prepare = prepare
    slots.runner._work(executor)
    assert next(steps) is pytest.fail  # it was prepared twice
    assert slots.queue.stats().ready == 1
