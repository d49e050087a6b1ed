"""DelayPromises: a poll waits no longer than requested or needed, and never after stop."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pytest

from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    AnyQueue,
    push_and_poll,
)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until other threads have made the condition true; fail after 30 seconds."""
    pause = Event()
    for _ in range(30_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("the condition was not true after 30 seconds")


class DelayPromises:
    """Promises about the waiting of a poll."""

    @pytest.fixture
    def auto_clock(self, clock: ManualClock) -> ManualClock:
        """The clock in a mode in which each wait moves it."""
        clock.auto_advance = True
        return clock

    def test_a_poll_waits_as_long_as_requested(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        before = auto_clock.monotonic()
        assert queue.poll(wait_seconds=5) == []
        assert auto_clock.monotonic() - before == pytest.approx(5, abs=0.3)

    def test_a_poll_does_not_wait_unless_requested(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        before = auto_clock.monotonic()
        assert queue.poll() == []
        assert auto_clock.monotonic() == before

    def test_a_poll_does_not_wait_when_a_message_is_ready(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        queue.push_many(AnyMessage() for _ in range(3))
        before = auto_clock.monotonic()
        assert len(queue.poll(10, wait_seconds=60)) == 3
        assert auto_clock.monotonic() == before

    def test_a_poll_ends_when_a_delayed_message_is_due(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        queue.push(AnyMessage(), delay_seconds=3)
        before = auto_clock.monotonic()
        [_] = queue.poll(wait_seconds=60)
        assert 3 <= auto_clock.monotonic() - before <= 4

    def test_a_poll_ends_when_a_lease_expires(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        push_and_poll(queue)
        before = auto_clock.monotonic()
        [again] = queue.poll(wait_seconds=10 * LEASE)
        assert again.attempts == 2
        assert LEASE <= auto_clock.monotonic() - before <= LEASE + 1

    def test_a_poll_ends_when_another_worker_pushes(
        self, queue: AnyQueue, clock: ManualClock, make_queue: Callable[[], AnyQueue]
    ) -> None:
        with ThreadPoolExecutor(1) as pool:
            polling: Future[list[Any]] = pool.submit(queue.poll, wait_seconds=1000)
            wait_until(lambda: clock.waiting == 1)
            make_queue().push(AnyMessage(id="a"))
            before = clock.monotonic()
            clock.advance(1)
            [message] = polling.result(30)
        assert message.id == "a"
        assert clock.monotonic() == before + 1

    def test_a_poll_ends_at_once_when_stop_is_set(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        stop = Event()
        with ThreadPoolExecutor(1) as pool:
            polling = pool.submit(queue.poll, wait_seconds=1_000_000, stop=stop)
            wait_until(lambda: clock.waiting == 1)
            stop.set()
            done, _ = wait([polling], 30)
            clock.advance(2_000_000)  # a poll that ignores stop must not block the tests
        assert done
        assert polling.result() == []

    def test_a_poll_does_not_wait_when_stop_is_set_already(
        self, queue: AnyQueue, auto_clock: ManualClock
    ) -> None:
        stop = Event()
        stop.set()
        before = auto_clock.monotonic()
        assert queue.poll(wait_seconds=60, stop=stop) == []
        assert auto_clock.monotonic() == before
