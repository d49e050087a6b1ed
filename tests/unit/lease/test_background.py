"""The background loop: passes at their times, errors, and the waits of a stop.

The keeper's tests (tests/integration/lease) start, stop, restart and fork it in threads.
"""

import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest

from holdfast.lease.background import BackgroundLoop
from holdfast.testing.clock import ManualClock
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until


class Passes:
    """A loop on a manual clock that counts its passes, and can be blocked in one."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.count = 0
        self.next_in_seconds = 10.0
        self.error: BaseException | None = None
        self.in_pass: Callable[[], object] = lambda: None
        self.gate = threading.Event()
        self.gate.set()
        self.inside = False
        self.loop = BackgroundLoop("test-loop", self.tick, self.clock, **options)

    def tick(self) -> float:
        """Run one pass."""
        self.count += 1
        self.inside = True
        assert self.gate.wait(WAIT_TIMEOUT_SECONDS)
        self.inside = False
        self.in_pass()
        if (error := self.error) is not None:
            self.error = None
            raise error
        return self.clock.monotonic() + self.next_in_seconds

    def start_and_settle(self) -> None:
        """Start the loop, and wait until it sleeps."""
        self.loop.start()
        self.settle()

    def settle(self) -> None:
        """Wait until the loop sleeps."""
        wait_until(lambda: self.clock.waiting)

    def start_and_block(self) -> None:
        """Start the loop, and bring it into a pass that does not end."""
        self.gate.clear()
        self.loop.start()
        wait_until(lambda: self.inside)


@pytest.fixture
def passes() -> Iterator[Passes]:
    passes = Passes()
    yield passes
    passes.gate.set()
    passes.loop.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "test-loop"]


def test_it_passes_at_once_and_then_at_the_time_that_each_pass_returned(passes):
    passes.start_and_settle()
    assert passes.count == 1
    passes.clock.advance(9)
    passes.settle()
    assert passes.count == 1
    passes.clock.advance(1)
    wait_until(lambda: passes.count == 2)


def test_a_wake_runs_one_pass_now_and_the_loop_sleeps_again(passes):
    passes.next_in_seconds = inf
    passes.start_and_settle()
    passes.loop.wake()
    wait_until(lambda: passes.count >= 2)
    time.sleep(0.02)
    assert passes.count == 2


def test_a_wake_during_a_pass_runs_another_one(passes):
    """What the pass did not see is seen by the next one."""
    passes.next_in_seconds = inf
    passes.start_and_block()
    passes.loop.wake()
    passes.gate.set()
    wait_until(lambda: passes.count == 2)


def test_a_loop_that_must_notice_a_suspended_machine_checks_its_clock_often():
    passes = Passes(max_wait_seconds=1.0)
    passes.next_in_seconds = inf
    passes.start_and_settle()
    passes.clock.advance(1)
    wait_until(lambda: passes.count == 2)
    passes.loop.stop()


def test_an_error_of_one_pass_is_logged_and_the_next_pass_follows(passes, caplog):
    passes.error = ZeroDivisionError()
    passes.start_and_settle()
    assert passes.loop.running
    passes.clock.advance(0.1)
    wait_until(lambda: passes.count == 2)
    [record] = caplog.records
    assert record.exc_info[0] is ZeroDivisionError
    assert "test-loop" in record.getMessage()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_that_is_no_error_ends_the_thread_and_a_start_begins_another(passes):
    class Odd(BaseException):
        pass

    passes.error = Odd()
    passes.loop.start()
    wait_until(lambda: not passes.loop.running)
    assert passes.loop.stop() is True
    passes.start_and_settle()
    assert passes.count == 2


def test_a_stop_that_is_requested_does_not_wait_and_no_pass_follows(passes):
    passes.start_and_block()
    passes.loop.request_stop()
    assert passes.inside
    assert not passes.loop.running
    passes.gate.set()
    assert passes.loop.stop() is True
    assert passes.count == 1


def test_a_stop_waits_no_longer_than_it_is_told(passes):
    passes.start_and_block()
    assert passes.loop.stop(0.01) is False
    assert passes.inside
    passes.gate.set()
    assert passes.loop.stop(WAIT_TIMEOUT_SECONDS) is True


def test_a_stop_of_a_loop_that_was_never_started_returns_at_once(passes):
    assert passes.loop.stop() is True
    assert passes.loop.thread is None


def test_a_stop_from_its_own_pass_does_not_wait_and_ends_the_pass_early(passes):
    results: list[bool] = []
    passes.in_pass = lambda: results.extend(
        [passes.loop.is_stop_pending(), passes.loop.stop(), passes.loop.is_stop_pending()]
    )
    passes.loop.start()
    wait_until(lambda: len(results) == 3)
    wait_until(lambda: not passes.loop.running)
    assert results == [False, False, True]


def test_a_stop_event_that_is_set_from_outside_ends_the_loop_after_its_pass(passes):
    passes.start_and_block()
    passes.loop.stop_event.set()
    passes.gate.set()
    passes.settle()
    passes.clock.advance(10)
    thread = passes.loop.thread
    assert thread is not None
    thread.join(WAIT_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert passes.count == 1


def test_the_thread_runs_the_target_that_runs_the_loop(passes):
    order: list[str] = []

    def target() -> None:
        order.append("before")
        loop.run()
        order.append("after")

    loop = BackgroundLoop(
        "test-loop", lambda: order.append("pass") or inf, passes.clock, target=target
    )  # type: ignore[func-returns-value]
    loop.start()
    wait_until(lambda: passes.clock.waiting)
    loop.stop()
    assert order == ["before", "pass", "after"]


def test_a_wait_that_is_replaced_gets_the_seconds_and_ends_when_the_loop_is_woken() -> None:
    waits: list[float | None] = []

    def wait(woken: threading.Event, seconds: float | None) -> None:
        waits.append(seconds)
        assert woken.wait(WAIT_TIMEOUT_SECONDS)

    passes = Passes(wait=wait)
    passes.loop.start()
    wait_until(lambda: waits == [10.0])
    passes.loop.wake()
    wait_until(lambda: waits == [10.0, 10.0])
    assert passes.loop.stop(WAIT_TIMEOUT_SECONDS)
    assert passes.count == 2
