"""DelayPromises in poll: no longer than said, no longer than needed, and not at all after stop."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pytest

from holdfast.core.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import LEASE, AnyQueue, poll_one


def until(condition: Callable[[], bool]) -> None:
    """Let other threads get there, however slow the machine."""
    glance = Event()
    for _ in range(30_000):
        if condition():
            return
        glance.wait(0.001)
    pytest.fail("waited 30 seconds in vain")


class DelayPromises:
    @pytest.fixture
    def hurry(self, clock: ManualClock) -> ManualClock:
        """The clock in a mode where whoever waits on it moves it."""
        clock.auto_advance = True
        return clock

    def test_it_waits_as_long_as_it_was_told(self, queue: AnyQueue, hurry: ManualClock) -> None:
        before = hurry.monotonic()
        assert queue.poll(wait_seconds=5) == []
        assert hurry.monotonic() - before == pytest.approx(5, abs=0.3)

    def test_it_does_not_wait_unless_told(self, queue: AnyQueue, hurry: ManualClock) -> None:
        before = hurry.monotonic()
        assert queue.poll() == []
        assert hurry.monotonic() == before

    def test_it_does_not_wait_when_something_is_there(
        self, queue: AnyQueue, hurry: ManualClock
    ) -> None:
        queue.push_many(AnyMessage() for _ in range(3))
        before = hurry.monotonic()
        assert len(queue.poll(10, wait_seconds=60)) == 3
        assert hurry.monotonic() == before

    def test_it_ends_when_a_delayed_message_is_due(
        self, queue: AnyQueue, hurry: ManualClock
    ) -> None:
        queue.push(AnyMessage(), delay_seconds=3)
        before = hurry.monotonic()
        [_] = queue.poll(wait_seconds=60)
        assert 3 <= hurry.monotonic() - before <= 4

    def test_it_ends_when_a_lease_runs_out(self, queue: AnyQueue, hurry: ManualClock) -> None:
        queue.push(AnyMessage())
        poll_one(queue)
        before = hurry.monotonic()
        [again] = queue.poll(wait_seconds=10 * LEASE)
        assert again.attempts == 2
        assert LEASE <= hurry.monotonic() - before <= LEASE + 1

    def test_it_ends_when_somebody_pushes(
        self, queue: AnyQueue, clock: ManualClock, make_queue: Callable[[], AnyQueue]
    ) -> None:
        with ThreadPoolExecutor(1) as pool:
            polling: Future[list[Any]] = pool.submit(queue.poll, wait_seconds=1000)
            until(lambda: clock.waiting == 1)
            make_queue().push(AnyMessage(id="a"))
            before = clock.monotonic()
            clock.advance(1)
            [message] = polling.result(30)
        assert message.id == "a"
        assert clock.monotonic() == before + 1

    def test_it_ends_at_once_when_stop_is_set(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        stop = Event()
        with ThreadPoolExecutor(1) as pool:
            polling = pool.submit(queue.poll, wait_seconds=1_000_000, stop=stop)
            until(lambda: clock.waiting == 1)
            stop.set()
            done, _ = wait([polling], 30)
            clock.advance(2_000_000)  # one that did not hear it must not hang the tests
        assert done
        assert polling.result() == []

    def test_it_does_not_begin_when_stop_is_set_already(
        self, queue: AnyQueue, hurry: ManualClock
    ) -> None:
        stop = Event()
        stop.set()
        before = hurry.monotonic()
        assert queue.poll(wait_seconds=60, stop=stop) == []
        assert hurry.monotonic() == before
