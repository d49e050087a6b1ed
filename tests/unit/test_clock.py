"""Clocks: the system's, and the one tests move by hand."""

from collections.abc import Callable
from threading import Event, Thread

import pytest

from holdfast.core.clock import SYSTEM_CLOCK, utc, utc_now
from holdfast.testing.clock import ManualClock

GENEROUS = 10.0  # real seconds until a hung test fails


def in_background(work: Callable[[], object]) -> Thread:
    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> None:
    give_up_at = SYSTEM_CLOCK.monotonic() + GENEROUS
    while not condition():
        assert SYSTEM_CLOCK.monotonic() < give_up_at
        SYSTEM_CLOCK.sleep(0.001)


# -- the system's


@pytest.mark.parametrize("seconds", [1e12, 1e30, float("inf"), -1e12, float("nan")])
def test_a_time_beyond_the_calendar_is_its_end(seconds):
    assert utc(seconds).year in (1, 9999)
    assert utc(seconds).tzinfo is not None


def test_the_system_clock_only_grows():
    first = SYSTEM_CLOCK.monotonic()
    SYSTEM_CLOCK.sleep(0.001)
    assert SYSTEM_CLOCK.monotonic() > first


def test_the_system_clock_waits_for_an_event_or_the_time():
    event = Event()
    assert SYSTEM_CLOCK.wait(event, 0.001) is False
    event.set()
    assert SYSTEM_CLOCK.wait(event, None) is True


def test_people_read_utc():
    assert utc(0).isoformat() == "1970-01-01T00:00:00+00:00"
    assert utc_now().tzinfo is not None


# -- the manual one


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
    sleeper = in_background(lambda: clock.sleep(10))
    until(lambda: clock.waiting == 1)
    clock.advance(9)
    assert clock.waiting == 1
    clock.advance(1)
    sleeper.join(GENEROUS)
    assert not sleeper.is_alive()
    assert clock.waiting == 0


def test_a_wait_ends_with_its_event_before_its_time():
    clock = ManualClock()
    event = Event()
    answers: list[bool] = []
    waiter = in_background(lambda: answers.append(clock.wait(event, 10)))
    until(lambda: clock.waiting == 1)
    event.set()
    waiter.join(GENEROUS)
    assert answers == [True]
    assert clock.monotonic() == ManualClock().monotonic()


def test_a_wait_ends_with_its_time_without_its_event():
    clock = ManualClock()
    answers: list[bool] = []
    waiter = in_background(lambda: answers.append(clock.wait(Event(), 10)))
    until(lambda: clock.waiting == 1)
    clock.advance(10)
    waiter.join(GENEROUS)
    assert answers == [False]


def test_a_wait_for_ever_ends_with_its_event_only():
    clock = ManualClock(auto_advance=True)
    event = Event()
    waiter = in_background(lambda: clock.wait(event, None))
    until(lambda: clock.waiting == 1)
    clock.advance(1e9)
    assert clock.waiting == 1
    event.set()
    waiter.join(GENEROUS)
    assert not waiter.is_alive()


def test_no_time_to_wait_returns_at_once():
    clock = ManualClock()
    assert clock.wait(Event(), 0) is False
    assert clock.wait(Event(), -1) is False
    clock.sleep(0)


def test_alone_a_test_lets_waits_and_sleeps_move_the_clock():
    clock = ManualClock(monotonic=0, auto_advance=True)
    assert clock.wait(Event(), 10) is False
    assert clock.wait(Event(), -10) is False
    clock.sleep(5)
    assert clock.monotonic() == 15


def test_alone_a_wait_for_what_has_happened_takes_no_time():
    clock = ManualClock(monotonic=0, auto_advance=True)
    event = Event()
    event.set()
    assert clock.wait(event, 10) is True
    assert clock.monotonic() == 0


def test_no_advance_is_lost_between_threads():
    clock = ManualClock(monotonic=0)
    threads = [
        in_background(lambda: [clock.advance(1) for _ in range(1_000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.join(GENEROUS)
    assert clock.monotonic() == 4_000
