"""The system clock, and the manual clock that tests move."""

from collections.abc import Callable
from threading import Event, Thread

import pytest

from holdfast.lease.clock import SYSTEM_CLOCK, to_utc, utc_now
from holdfast.testing.clock import ManualClock
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until


def start_thread(work: Callable[[], object]) -> Thread:
    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


# -- the system clock


@pytest.mark.parametrize("seconds", [1e12, 1e30, float("inf"), -1e12, float("nan")])
def test_a_time_beyond_the_calendar_becomes_its_first_or_last_moment(seconds):
    assert to_utc(seconds).year in (1, 9999)
    assert to_utc(seconds).tzinfo is not None


def test_the_system_clock_only_grows():
    first = SYSTEM_CLOCK.monotonic()
    SYSTEM_CLOCK.sleep(0.001)
    assert SYSTEM_CLOCK.monotonic() > first


def test_the_system_clock_waits_for_an_event_or_the_time():
    event = Event()
    assert SYSTEM_CLOCK.wait(event, 0.001) is False
    event.set()
    assert SYSTEM_CLOCK.wait(event, None) is True


def test_epoch_times_are_converted_to_utc():
    assert to_utc(0).isoformat() == "1970-01-01T00:00:00+00:00"
    assert utc_now().tzinfo is not None


# -- the manual clock


def test_time_stands_still_until_it_is_moved():
    clock = ManualClock(monotonic=5.0, time=100.0)
    assert (clock.monotonic(), clock.time()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.monotonic(), clock.time()) == (7.5, 102.5)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_does_not_run_backwards(seconds):
    with pytest.raises(ValueError, match="cannot move"):
        ManualClock().advance(seconds)


def test_the_wall_clock_can_be_set_without_any_time_passing():
    clock = ManualClock(monotonic=5.0, time=100.0)
    clock.step_time(-60)
    assert (clock.monotonic(), clock.time()) == (5.0, 40.0)


def test_advancing_far_enough_wakes_a_sleeper_and_less_does_not():
    clock = ManualClock()
    sleeper = start_thread(lambda: clock.sleep(10))
    wait_until(lambda: clock.waiting == 1)
    clock.advance(9)
    assert clock.waiting == 1
    clock.advance(1)
    sleeper.join(WAIT_TIMEOUT_SECONDS)
    assert not sleeper.is_alive()
    assert clock.waiting == 0


def test_a_wait_ends_with_its_event_before_its_time():
    clock = ManualClock()
    event = Event()
    answers: list[bool] = []
    waiter = start_thread(lambda: answers.append(clock.wait(event, 10)))
    wait_until(lambda: clock.waiting == 1)
    event.set()
    waiter.join(WAIT_TIMEOUT_SECONDS)
    assert answers == [True]
    assert clock.monotonic() == ManualClock().monotonic()


def test_a_wait_ends_with_its_time_without_its_event():
    clock = ManualClock()
    answers: list[bool] = []
    waiter = start_thread(lambda: answers.append(clock.wait(Event(), 10)))
    wait_until(lambda: clock.waiting == 1)
    clock.advance(10)
    waiter.join(WAIT_TIMEOUT_SECONDS)
    assert answers == [False]


def test_a_wait_without_a_time_limit_ends_only_with_its_event():
    clock = ManualClock(auto_advance=True)
    event = Event()
    waiter = start_thread(lambda: clock.wait(event, None))
    wait_until(lambda: clock.waiting == 1)
    clock.advance(1e9)
    assert clock.waiting == 1
    event.set()
    waiter.join(WAIT_TIMEOUT_SECONDS)
    assert not waiter.is_alive()


def test_a_wait_of_zero_seconds_returns_at_once():
    clock = ManualClock()
    assert clock.wait(Event(), 0) is False
    assert clock.wait(Event(), -1) is False
    clock.sleep(0)


def test_with_auto_advance_waits_and_sleeps_move_the_clock():
    clock = ManualClock(monotonic=0, auto_advance=True)
    assert clock.wait(Event(), 10) is False
    assert clock.wait(Event(), -10) is False
    clock.sleep(5)
    assert clock.monotonic() == 15


def test_with_auto_advance_a_wait_for_a_set_event_takes_no_time():
    clock = ManualClock(monotonic=0, auto_advance=True)
    event = Event()
    event.set()
    assert clock.wait(event, 10) is True
    assert clock.monotonic() == 0


def test_no_advance_is_lost_between_threads():
    clock = ManualClock(monotonic=0)
    threads = [start_thread(lambda: [clock.advance(1) for _ in range(1_000)]) for _ in range(4)]
    for thread in threads:
        thread.join(WAIT_TIMEOUT_SECONDS)
    assert clock.monotonic() == 4_000
