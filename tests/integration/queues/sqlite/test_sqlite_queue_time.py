"""Clock steps and restarts of the machine: a lease lasts as long as it was given."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.testing import ManualClock
from support.files.queue_folder import LEASE, make_message
from support.sqlite.queue_file import QueueFile

steps = pytest.mark.parametrize("step", [-7200.0, -1.0, 1.0, 7200.0])


@steps
def test_a_step_of_the_wall_clock_neither_ends_nor_prolongs_a_lease(
    fast_path: Path, step: float
) -> None:
    ground = QueueFile(fast_path)
    holder, other = ground.queue(), ground.queue()
    holder.push(make_message("a"))
    [message] = holder.poll()
    ground.clock.step_time(step)
    ground.clock.advance(LEASE - 1)
    late = ground.queue()  # it starts after the step
    assert (other.poll(), late.poll()) == ([], [])
    holder.extend(message)
    ground.clock.advance(LEASE - 1)
    assert (other.poll(), late.poll()) == ([], [])
    ground.clock.advance(1.01)
    assert [m.id for m in late.poll()] == ["a"]


@steps
def test_a_delay_lasts_as_long_as_it_was_given(fast_path: Path, step: float) -> None:
    ground = QueueFile(fast_path)
    queue = ground.queue()
    queue.push(make_message("a"), delay_seconds=100.0)
    ground.clock.step_time(step)
    ground.clock.advance(99.0)
    assert queue.poll() == []
    ground.clock.advance(1.0)
    assert [m.id for m in ground.queue().poll()] == ["a"]


def restart_machine(ground: QueueFile, *, off_seconds: float) -> QueueFile:
    """Return the file on a machine that was off for a time, as its clock measured it.

    The monotonic clock starts anew, and no process has opened the file since the start.
    """
    with closing(sqlite3.connect(ground.path)) as connection, connection:
        connection.execute("UPDATE boots SET boot_id = 'an earlier start'")
    clock = ManualClock(monotonic=5.0, time=ground.clock.time() + off_seconds)
    return QueueFile(ground.root, clock)


@pytest.mark.parametrize("off_seconds", [1.0, LEASE, 1e7, -1e7])
def test_the_leases_of_before_a_restart_end_with_it(
    fast_path: Path, off_seconds: float
) -> None:
    """No holder survived. The clock may have gone back: a machine without a battery starts with
    the time of its last image, for example. Here a worker had held its message for hours.
    """
    ground = QueueFile(fast_path)
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    for _ in range(500):
        ground.clock.advance(LEASE / 2)
        queue.extend(message)
    restarted = restart_machine(ground, off_seconds=off_seconds)
    later = restarted.queue()
    assert [m.attempts for m in later.poll()] == [2]
    assert restarted.queue().poll() == []  # and only once


def test_a_delay_goes_on_after_a_restart(fast_path: Path) -> None:
    ground = QueueFile(fast_path)
    ground.queue().push(make_message("a"), delay_seconds=100.0)
    restarted = restart_machine(ground, off_seconds=60.0)
    later = restarted.queue()
    restarted.clock.advance(39.0)
    assert later.poll() == []
    restarted.clock.advance(1.0)
    assert [m.id for m in later.poll()] == ["a"]
