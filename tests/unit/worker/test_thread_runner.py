"""ThreadRunner enforces the time limit of a handler when it is due."""

from math import inf

import pytest

from holdfast.events import Events
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.runner import DirectExecutor, ThreadRunner
from holdfast.worker.settle import InFlight


class Slots:
    """A runner whose threads are not started, with the messages that its slots hold."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self.clock, events = ManualClock(), Events()
        self.queue: MemoryQueue[AnyMessage] = MemoryQueue(clock=self.clock, lease_seconds=600)
        self._in_flight: InFlight[AnyMessage] = InFlight(self.queue, events, self.clock)
        keeper = LeaseKeeper(self.clock, events)
        fetcher = Fetcher(keeper, self._in_flight)
        self._runner = ThreadRunner(
            2,
            lambda: DirectExecutor(print, lambda *_: None),  # type: ignore[arg-type]
            fetcher,
            self._in_flight,
            timeout_seconds=timeout_seconds,
        )
        self._messages: list[AnyMessage] = []

    def claim(self, wait_seconds: float = 0.0) -> None:
        """Claim a message, and start it after it has waited."""
        self.queue.push(AnyMessage())
        [message] = self.queue.poll()
        self._messages.append(message)
        self._in_flight.add([get_lease(message)])
        self.clock.advance(wait_seconds)
        self._in_flight.note_start(get_lease(message), self.clock.monotonic())

    def wait_again(self) -> None:
        """Treat the messages as if no slot had started them."""
        self._in_flight.add([get_lease(message) for message in self._messages])

    def watch_after(self, seconds: float) -> float:
        self.clock.advance(seconds)
        return self._runner.watch(self.clock.monotonic())

    def get_live(self) -> list[bool]:
        return [get_lease(message).live for message in self._messages]


def test_the_next_check_is_when_the_oldest_message_times_out() -> None:
    slots = Slots(timeout_seconds=10.0)
    slots.claim()
    assert slots.watch_after(4.0) == pytest.approx(6.0)
    slots.claim()
    assert slots.watch_after(3.0) == pytest.approx(3.0)
    assert slots.get_live() == [True, True]


def test_work_loses_its_lease_at_its_own_time_limit() -> None:
    slots = Slots(timeout_seconds=10.0)
    slots.claim()
    slots.watch_after(4.0)
    slots.claim()
    assert slots.watch_after(6.0) == pytest.approx(4.0)
    assert slots.get_live() == [False, True]
    # A message may be claimed right after the check.
    assert slots.watch_after(4.0) == pytest.approx(10.0)
    assert slots.get_live() == [False, False]


def test_without_a_time_limit_there_is_no_next_check() -> None:
    slots = Slots(timeout_seconds=None)
    slots.claim()
    assert slots.watch_after(500.0) == inf
    assert slots.get_live() == [True]


def test_the_time_limit_counts_from_the_start_of_the_work() -> None:
    slots = Slots(timeout_seconds=10.0)
    slots.claim(wait_seconds=8.0)
    assert slots.watch_after(9.0) == pytest.approx(1.0)
    assert slots.get_live() == [True]


def test_a_message_that_waits_to_be_started_has_no_time_limit() -> None:
    slots = Slots(timeout_seconds=10.0)
    slots.claim()
    slots.wait_again()
    slots.watch_after(11.0)
    assert slots.get_live() == [True]
