"""The watchdog's three signs of life, and what it does if one is missing."""

import os
import signal
from pathlib import Path
from typing import Any

import child_handlers as handlers
import pytest

from holdfast.events import ChildKilled, MessageLeaseLost
from holdfast.worker.worker import Worker, WorkerReport
from support.waiting import wait_until
from support.workers.notes import Notes, is_alive
from support.workers.running import TestQueue, members, run_until_empty, running


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def queue(notes: Notes) -> TestQueue:
    """A queue that records at each settlement which children are still alive."""
    queue = TestQueue()

    def record_living(verb: str) -> None:
        living = [pid for pid in set(notes.values("pid")) if members(int(pid))]
        queue.log.append(f"living {len(living)}")

    queue.before_settling = record_living
    return queue


def make_worker(queue: TestQueue, **settings: Any) -> Worker[Any]:
    settings = {"kill_grace_seconds": 1.0} | settings
    return Worker(queue, handlers.do, isolation="process", **settings)


def push(queue: TestQueue, notes: Notes, what: str, **fields: Any) -> None:
    queue.push_ids("m", what=what, notes=str(notes.path), **fields)


@pytest.mark.requirement("R003-007")
@pytest.mark.parametrize(
    ("what", "limits", "reason"),
    [
        ("sleep_once", {"stall_seconds": 3.0}, "stalled: no beat for 3 s"),
        ("sleep_once", {"timeout_seconds": 3.0}, "timed out after 3 s"),
        (
            "hold_the_gil_once",
            {"pulse_seconds": 3.0},
            "the worker process did not answer for 3 s",
        ),
    ],
)
def test_work_without_a_sign_of_life_is_killed_and_then_retried(
    queue: TestQueue, notes: Notes, what: str, limits: dict[str, float], reason: str
) -> None:
    push(queue, notes, what)
    report = run_until_empty(make_worker(queue, **limits))
    assert report == WorkerReport(1, 1, 0, 0, 0)
    calls = [line for line in queue.log if not line.startswith("renew")]
    assert calls[:3] == ["claim m", "nack m", "living 0"]  # dead, with all it started
    assert len(set(notes.values("pid"))) == 2  # and replaced
    assert [event.reason for event in queue.seen.of(ChildKilled)] == [reason]
    [view] = queue.find("m")
    assert view.past[0].reason == reason
    # The stack shows where it was, even if its interpreter was stuck.
    assert f"in {what.removesuffix('_once')}" in (view.past[0].detail or "")


def test_a_stopped_process_is_unresponsive_and_is_killed(
    queue: TestQueue, notes: Notes
) -> None:
    push(queue, notes, "sleep_once")
    with running(make_worker(queue, pulse_seconds=3.0)) as run:
        wait_until(lambda: notes.values("sleeping"))
        os.kill(notes.pid(), signal.SIGSTOP)
        wait_until(lambda: queue.stats().completed == 1)
        assert run.stop() == WorkerReport(1, 1, 0, 0, 0)
    [view] = queue.find("m")
    assert view.past[0].reason == "the worker process did not answer for 3 s"
    assert not is_alive(notes.pid())


def test_a_child_stopped_in_the_middle_of_a_frame_does_not_block_the_worker(
    queue: TestQueue, notes: Notes
) -> None:
    push(queue, notes, "finish")
    with running(make_worker(queue, pulse_seconds=3.0)) as run:
        wait_until(lambda: queue.stats().completed == 1)
        os.kill(notes.pid(), signal.SIGSTOP)  # it will read only a part of this:
        push(queue, notes, "tell_size", padding="x" * 1_000_000)
        wait_until(lambda: queue.stats().completed == 2)
        assert run.stop() == WorkerReport(2, 1, 0, 0, 0)


@pytest.mark.nightly
def test_a_long_handler_without_beats_and_limits_is_not_disturbed(
    queue: TestQueue, notes: Notes
) -> None:
    push(queue, notes, "take_long", seconds=5.0)
    assert run_until_empty(make_worker(queue, pulse_seconds=4.0)).completed == 1


def test_a_message_that_hangs_on_every_attempt_is_dead_lettered(
    queue: TestQueue, notes: Notes
) -> None:
    push(queue, notes, "sleep")
    report = run_until_empty(make_worker(queue, stall_seconds=0.3))
    assert report == WorkerReport(0, 2, 1, 0, 0)
    dead = next(queue.dead_letters())
    assert dead.reason == "failed 3 times, last: stalled: no beat for 0.3 s"


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(
    queue: TestQueue, notes: Notes
) -> None:
    push(queue, notes, "ignore_everything")
    with running(make_worker(queue, stall_seconds=3.0, kill_grace_seconds=0.3)):
        wait_until(lambda: queue.seen.of(ChildKilled))
        assert not is_alive(notes.pid())


def test_everything_the_work_started_is_killed_with_it(queue: TestQueue, notes: Notes) -> None:
    push(queue, notes, "have_children", then="sleep")
    with running(make_worker(queue, stall_seconds=3.0, kill_grace_seconds=0.3)):
        wait_until(lambda: "nack m" in queue.log)
        wait_until(lambda: "living 0" in queue.log)
        assert not is_alive(notes.pid("started"))
        assert not is_alive(notes.pid("forked"))


def test_work_that_is_ended_gets_time_to_clean_up_and_save_a_checkpoint(
    queue: TestQueue, notes: Notes
) -> None:
    push(queue, notes, "clean_up")
    report = run_until_empty(make_worker(queue, stall_seconds=3.0, kill_grace_seconds=20.0))
    assert report == WorkerReport(1, 1, 0, 0, 0)
    assert notes.values("cleaned") == ["up"]
    assert notes.values("found") == ["{'saved': 'while ending'}"]


def test_work_that_finishes_while_it_is_being_ended_is_completed(
    queue: TestQueue, notes: Notes
) -> None:
    push(queue, notes, "finish_late")
    report = run_until_empty(make_worker(queue, stall_seconds=3.0, kill_grace_seconds=20.0))
    assert report == WorkerReport(1, 0, 0, 0, 0)


@pytest.mark.parametrize("what", ["sleep", "hold_the_gil"])
def test_a_lost_lease_kills_the_work_and_settles_nothing(notes: Notes, what: str) -> None:
    queue = TestQueue(lease_seconds=6.0)
    push(queue, notes, what)
    with running(make_worker(queue)) as run:
        pid = notes.pid()
        queue.refusing.set()
        wait_until(lambda: not members(pid))
        wait_until(lambda: queue.seen.of(ChildKilled))
        report = run.stop_now()
    assert report.abandoned >= 1
    assert not {"ack m", "nack m", "dead_letter m"} & set(queue.log)
    assert queue.seen.of(MessageLeaseLost)[0].reason == "another worker has it"
