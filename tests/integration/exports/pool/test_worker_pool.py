"""The worker pool, with real processes and real kills.

(processes, messages),  (isolation), JB-28…31, I-JB-11, I-JB-14.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import poll
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports.events import PoolWorkerEnded, PoolWorkerStarted, TaskRetried
from holdfast.exports.model import TaskResult, TaskToken
from holdfast.exports.pool import wire
from holdfast.exports.pool.pool import WakeupPipe, WorkerPool, make_program
from holdfast.exports.pool.worker import Assignment, WorkerSlot
from holdfast.lease.clock import SYSTEM_CLOCK, SystemClock
from holdfast.process.child_process import ChildProcess
from holdfast.process.liveness import LivenessLimits
from holdfast.testing.clock import ManualClock
from support.leftovers import Leftovers
from support.paths import make_child_environment
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until
from support.workers import pool_work
from support.workers.notes import Notes, is_alive
from support.workers.running import Seen, members

BUSY_MACHINE_SECONDS = (
    4.0  # seconds within which a live worker sends a frame, even on a busy machine
)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


class Tasks:
    """A source of tasks that records their results."""

    def __init__(self, *tasks: Assignment) -> None:
        self.waiting = deque(tasks)
        self.results: list[TaskResult] = []
        self.back: list[str] = []
        self.threads: set[str] = set()
        self.takes = 0

    def take(self) -> Assignment | None:
        self.takes += 1
        self.threads.add(threading.current_thread().name)
        return self.waiting.popleft() if self.waiting else None

    def finish(self, result: TaskResult) -> None:
        self.results.append(result)

    def give_back(self, assignment: Assignment) -> None:
        self.back.append(assignment.task_id)

    def result(self, task_id: str = "t") -> TaskResult:
        """Wait for the only result of that task, and return it."""
        [result] = wait_until(lambda: [r for r in self.results if r.task_id == task_id])
        return result

    def code(self, task_id: str = "t") -> str | None:
        error = self.result(task_id).error
        return None if error is None else error.code


def task(do: str, task_id: str = "t", job_id: str = "j", **payload: Any) -> Assignment:
    return Assignment(job_id, task_id, {"do": do, **payload})


@contextmanager
def pool_of(
    notes: Notes,
    tasks: Tasks,
    *,
    seen: Seen | None = None,
    make: Any = pool_work.work,
    **settings: Any,
) -> Iterator[WorkerPool]:
    """Start a pool, by default with one worker and all at once, and stop it afterwards."""
    events = Events(seen) if seen else None
    settings = {"size": 1, "response_timeout_seconds": 60.0} | settings
    settings = {"min_size": settings["size"]} | settings
    pool = WorkerPool(make(notes.path), tasks, events=events, **settings)
    pids: set[int] = set()
    try:
        pool.start()
        pids |= {worker.pid for worker in pool.list_workers()}
        yield pool
        pids |= {worker.pid for worker in pool.list_workers()}
    finally:
        pool.stop(0.0)
    assert [pid for pid in pids if members(pid)] == []


def wait_for_pass(pool: WorkerPool, tasks: Tasks) -> None:
    """Wait for a whole pass of a pool with free slots, in each of which it asks for a task.

    The first may have begun before, and the last may not have ended.
    """
    before = tasks.takes
    wait_until(lambda: pool.wake() or tasks.takes >= before + 3)


def push(pool: WorkerPool, tasks: Tasks, *more: Assignment) -> None:
    """Add tasks to the source, and wake the pool."""
    tasks.waiting.extend(more)
    pool.wake()


def pids(pool: WorkerPool) -> list[int]:
    return [worker.pid for worker in pool.list_workers()]


def running(pool: WorkerPool) -> list[str]:
    return [run.assignment.task_id for worker in pool.list_workers() for run in worker.tasks]


# -- ordinary work


@pytest.mark.requirement(
    "R004-033",
    "R004-034",
    "R004-042",
    "R004-043",
    "R004-044",
    "R004-045",
    "R004-046",
    "R004-047",
    "R004-102",
    "R004-104",
)
def test_each_task_is_finished_once_with_the_result_of_its_work(
    notes: Notes,
) -> None:
    many = [task("finish", f"t{n}", bytes=n) for n in range(30)]
    tasks = Tasks(*many, task("refuse", "no"))
    with pool_of(notes, tasks, size=2):
        wait_until(lambda: len(tasks.results) == 31)
    assert sorted(r.bytes_processed for r in tasks.results if r.success) == list(range(30))
    assert {r.job_id for r in tasks.results} == {"j"}
    assert tasks.code("no") == "NotFound"
    assert (tasks.back, tasks.threads) == ([], {"holdfast-pool"})


@pytest.mark.requirement(
    "R004-007",
    "R004-036",
    "R004-037",
    "R004-038",
    "R004-039",
    "R004-040",
    "R004-041",
    "R004-072",
    "R004-076",
)
def test_a_worker_gets_only_the_fields_of_its_task(notes: Notes) -> None:
    """No token, no client, plain data."""
    payload = {"url": "https://x/y", "s3Bucket": "b", "s3Key": "exports/j/y"}
    tasks = Tasks(task("tell_all", **payload))
    with pool_of(notes, tasks):
        assert tasks.result().success
    assert notes.values("keys") == ["attempt do jobId nonce s3Bucket s3Key taskId url"]
    [modules] = [set(line.split()) for line in notes.values("modules")]
    assert modules.isdisjoint({"boto3", "botocore", "pydantic", "multiprocessing", "pytest"})
    assert "holdfast.exports.ports" not in modules
    [arguments] = notes.values("arguments")
    assert arguments.split()[:2] == ["-c", str(os.getpid())]
    assert notes.values("inheritable") == ["[]"]  # processes of the handler get no pipe


@pytest.mark.requirement("R004-007", "R004-027", "R004-072")
def test_data_that_is_not_plain_never_reaches_a_worker(notes: Notes) -> None:
    """A token is not plain data."""
    tasks = Tasks(
        task("finish", "token", token=TaskToken("canary")),
        task("finish", "nan", number=float("nan")),
        task("finish", "huge", ballast="x" * (2 << 20)),
        task("finish", "good"),
    )
    with pool_of(notes, tasks):
        assert tasks.result("good").success
        assert tasks.code("token") == tasks.code("nan") == "InvalidTask"
        assert tasks.code("huge") == "InvalidTask"
    assert "canary" not in repr(tasks.results)


@pytest.mark.requirement("R004-005", "R004-025", "R004-026", "R004-033", "R004-105")
def test_tasks_are_spread_over_idle_workers_and_taken_only_for_free_slots(
    notes: Notes,
) -> None:
    tasks = Tasks()
    with pool_of(notes, tasks, size=3, slots=2) as pool:
        push(pool, tasks, *(task("sleep", f"t{n}") for n in range(3)))
        wait_until(lambda: len(notes.values("sleeping")) == 3)
        by_pid = [int(line.split()[2]) for line in notes.values("begin")]
        assert sorted(by_pid) == sorted(pids(pool))  # every worker gets one before any gets two
        push(pool, tasks, *(task("sleep", f"u{n}") for n in range(7)))
        wait_until(lambda: len(notes.values("sleeping")) == 6)
        assert [len(worker.tasks) for worker in pool.list_workers()] == [2, 2, 2]
        assert len(tasks.waiting) == 4


def test_workers_are_added_only_when_no_slot_becomes_free(notes: Notes) -> None:
    tasks, clock = Tasks(task("sleep", "s"), task("finish", "f")), ManualClock()
    with pool_of(notes, tasks, size=3, min_size=1, slots=2, clock=clock) as pool:
        assert tasks.result("f").success
        wait_until(lambda: notes.values("sleeping"))
        clock.advance(5.0)
        wait_for_pass(pool, tasks)  # half of the slots are free
        push(pool, tasks, task("sleep", "t"))
        wait_until(lambda: len(notes.values("sleeping")) == 2)
        clock.advance(0.9)  # all slots are taken, but not for a second
        pool.wake()
        push(pool, tasks, *(task("sleep", f"u{n}") for n in range(5)))
        time.sleep(0.1)
        assert len(pids(pool)) == 1
        clock.advance(0.2)
        pool.wake()
        wait_until(lambda: len(notes.values("sleeping")) == 4)
        assert [len(worker.tasks) for worker in pool.list_workers()] == [2, 2]
        clock.advance(1.0)
        pool.wake()
        wait_until(lambda: len(notes.values("sleeping")) == 6)
        clock.advance(10.0)  # there are as many as there may be
        pool.wake()
        assert len(pids(pool)) == 3
        assert len(tasks.waiting) == 1


def test_a_worker_that_was_added_and_cannot_start_does_not_end_the_pool(notes: Notes) -> None:
    seen, tasks, clock = Seen(), Tasks(task("sleep", "s")), ManualClock()
    sizes = {"size": 2, "min_size": 1, "slots": 1}
    timeouts = {"task_timeout_seconds": 1e9, "response_timeout_seconds": 1e9}
    make = pool_work.work_of_the_first
    with pool_of(notes, tasks, seen=seen, make=make, clock=clock, **sizes, **timeouts) as pool:
        [first] = pids(pool)
        wait_until(lambda: notes.values("sleeping"))

        def add_and_see_it_end() -> bool:
            clock.advance(1.0)
            pool.wake()
            return len(seen.of(PoolWorkerEnded)) > 3

        wait_until(add_and_see_it_end)
        assert first in pids(pool)
        assert running(pool) == ["s"]


@pytest.mark.requirement("R004-024")
def test_new_tasks_are_started_when_the_pool_is_woken(notes: Notes) -> None:
    """At once, not at the pool's next check, which is made every second."""
    tasks, took = Tasks(), []
    with pool_of(notes, tasks) as pool:
        for number in range(20):
            before = time.monotonic()
            push(pool, tasks, task("finish", f"t{number}"))
            assert tasks.result(f"t{number}").success
            took.append(time.monotonic() - before)
    assert min(took) < 0.5  # a busy machine may be slow, but not each time


def test_the_view_shows_how_far_each_task_is(notes: Notes) -> None:
    tasks = Tasks(task("sleep"))
    with pool_of(notes, tasks, response_timeout_seconds=4.0) as pool:
        wait_until(lambda: pool.count_running_bytes("j") == 1234)
        [worker] = pool.list_workers()
        [view] = worker.tasks
        assert (view.assignment, view.number) == (task("sleep"), 1)
        assert 0.0 < view.started_at < SYSTEM_CLOCK.monotonic()
        assert worker.pid == notes.pid("made")
        assert pool.count_running_bytes("other") == 0


@pytest.mark.requirement("R004-047")
@pytest.mark.parametrize(
    ("do", "code", "message"),
    [
        ("fail", "ConnectionError", "no https://…@host/a?… " + "x" * 477 + "…"),
        ("nonsense", "InvalidResult", "the task handler returned a object, no result"),
        ("unknown", "AttributeError", "'PoolWork' object has no attribute 'unknown'"),
    ],
)
def test_work_that_raises_fails_its_task_and_its_worker_continues(
    notes: Notes, do: str, code: str, message: str
) -> None:
    """Credentials in a URL stay where they are."""
    text = "no https://me:canary@host/a?sig=canary " + "x" * 1000
    tasks = Tasks(task(do, text=text), task("finish", "next"))
    with pool_of(notes, tasks):
        assert tasks.result("next").success
        error = tasks.result().error
        assert error is not None
        assert (error.code, error.message) == (code, message)
    assert len(notes.values("made")) == 1


# -- workers that end


@pytest.mark.requirement("R004-020", "R004-071", "R004-074")
def test_a_worker_killed_while_busy_is_replaced_and_its_task_done_again(
    notes: Notes,
) -> None:
    """(JB-28)."""
    tasks, seen = Tasks(task("sleep")), Seen()
    with pool_of(notes, tasks, seen=seen) as pool:
        wait_until(lambda: notes.values("sleeping"))
        before = pids(pool)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(notes.values("sleeping")) == 2)
        assert members(before[0]) == []
        assert [view.number for worker in pool.list_workers() for view in worker.tasks] == [2]
        after = pids(pool)
    assert seen.of(PoolWorkerEnded) == [PoolWorkerEnded(before[0], "SIGKILL")]
    assert seen.of(TaskRetried) == [TaskRetried("j", "t", 2, "SIGKILL")]
    assert seen.of(PoolWorkerStarted) == [PoolWorkerStarted(pid) for pid in before + after]
    assert (tasks.results, tasks.back) == ([], ["t"])


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("leave", "exit code 7"),
        ("kill_itself", "SIGKILL"),
        ("no_memory", "out of memory"),
    ],
)
def test_a_task_that_ends_its_worker_each_time_has_failed_after_the_last_attempt(
    notes: Notes, do: str, reason: str
) -> None:
    """JB-28; memory that ran out counts as a death."""
    tasks = Tasks(task(do))
    with pool_of(notes, tasks, max_attempts=3) as pool:
        error = tasks.result().error
        assert error is not None
        assert (error.code, error.message) == (
            "WorkerDied",
            f"given up after attempt 3; the worker: {reason}",
        )
        push(pool, tasks, task("finish", "next"))
        assert tasks.result("next").success
    assert [line.split()[1] for line in notes.values("begin")][:3] == ["1", "2", "3"]


class Poisoned(Tasks):
    """One task that kills its worker, among others that run as long as it exists."""

    def __init__(self) -> None:
        super().__init__(task("kill_itself", "poison", seconds=0.05))
        self.innocents = 0

    def take(self) -> Assignment | None:
        if (given := super().take()) is not None:
            return given
        if any(result.task_id == "poison" for result in self.results):
            return None
        self.innocents += 1
        return task("finish", f"t{self.innocents}", seconds=0.1)


@pytest.mark.requirement("R004-005")
@pytest.mark.parametrize(("max_attempts", "attempts"), [(3, 3), (1, 2)])
def test_other_tasks_of_a_killed_worker_do_not_fail(
    notes: Notes, max_attempts: int, attempts: int
) -> None:
    """JB-28: a suspect gets the next worker alone, even if only one attempt is allowed."""
    tasks, seen = Poisoned(), Seen()
    with pool_of(notes, tasks, seen=seen, size=2, slots=4, max_attempts=max_attempts):
        assert tasks.code("poison") == "WorkerDied"
        wait_until(lambda: len(tasks.results) == tasks.innocents + 1)
    assert [r.task_id for r in tasks.results if not r.success] == ["poison"]
    assert len({r.task_id for r in tasks.results}) == tasks.innocents + 1
    again = Counter(event.task_id for event in seen.of(TaskRetried))
    assert again.pop("poison") == attempts - 1
    assert sum(again.values()) <= 3  # only the tasks that shared its first worker


def test_a_task_that_exceeds_its_timeout_is_ended_and_fails(notes: Notes) -> None:
    """JB-31: other tasks of that worker do not fail, however often it happens."""
    tasks = Tasks(task("take_too_long", "long"), task("finish", "short", seconds=1.0))
    seen = Seen()
    with pool_of(notes, tasks, seen=seen, max_attempts=1, task_timeout_seconds=0.5, slots=2):
        assert tasks.code("long") == "TaskTimedOut"
    assert {ended.reason for ended in seen.of(PoolWorkerEnded)} == {
        "a task took longer than 0.5 s"
    }


def test_a_task_is_not_restarted_before_its_last_worker_is_gone(notes: Notes) -> None:
    """I-JB-11: never two live workers at one task, even if one is slow to die."""
    tasks = Tasks(task("take_too_long", megabytes=256))
    with pool_of(notes, tasks, size=2, max_attempts=2, task_timeout_seconds=1.0):
        wait_until(lambda: len(notes.values("begin")) == 2)
    assert notes.values("overlap") == []


@pytest.mark.parametrize("do", ["stop_itself", "hold_the_gil"])
def test_an_unresponsive_worker_is_killed_and_its_task_done_again(
    notes: Notes, do: str
) -> None:
    """JB-31: stopped, or stuck in C code."""
    tasks, seen = Tasks(task(do)), Seen()
    with pool_of(notes, tasks, seen=seen, response_timeout_seconds=BUSY_MACHINE_SECONDS):
        assert tasks.result().success
    silent = f"the worker process did not answer for {BUSY_MACHINE_SECONDS:g} s"
    assert seen.of(PoolWorkerEnded)[0].reason == silent


@pytest.mark.requirement("R004-019", "R004-075")
def test_a_stopped_worker_with_large_tasks_does_not_block_the_others(
    notes: Notes,
) -> None:
    """The pool never waits for a pipe that is not read (I-JB-11)."""
    tasks = Tasks()
    with pool_of(
        notes, tasks, size=2, slots=1, response_timeout_seconds=BUSY_MACHINE_SECONDS
    ) as pool:
        stopped = pids(pool)[0]
        os.kill(stopped, signal.SIGSTOP)
        large = {"ballast": "x" * (1 << 20)}
        push(pool, tasks, *(task("finish", f"t{n}", **large) for n in range(20)))
        wait_until(lambda: len(tasks.results) >= 19)
        assert stopped in pids(pool)  # not ended yet, so the pool did not wait for it
        wait_until(lambda: len(tasks.results) == 20)
    assert all(result.success for result in tasks.results)


@pytest.mark.requirement("R004-074")
def test_a_death_is_noticed_although_another_process_holds_the_pipe_open(notes: Notes) -> None:
    tasks, seen = Tasks(task("leave_its_pipe_open")), Seen()
    try:
        with pool_of(notes, tasks, seen=seen):
            assert tasks.result().success
    finally:
        for daemon in notes.values("daemon"):
            os.kill(int(daemon), signal.SIGKILL)
    assert [ended.reason for ended in seen.of(PoolWorkerEnded)] == ["exit code 8"]


def test_what_a_worker_started_ends_with_it(notes: Notes) -> None:
    tasks = Tasks(task("have_children"))
    with pool_of(notes, tasks, max_attempts=1) as pool:
        child = notes.pid("child")
        assert child in members(pids(pool)[0])
        os.kill(pids(pool)[0], signal.SIGKILL)
        assert tasks.code() == "WorkerDied"
        assert not is_alive(child)


def test_what_a_worker_started_ends_with_its_clean_end(notes: Notes) -> None:
    tasks = Tasks(task("leave_a_child"))
    with pool_of(notes, tasks):
        assert tasks.result().success
        assert is_alive(notes.pid("child"))
    assert len(notes.values("close")) == 1
    assert not is_alive(notes.pid("child"))


@pytest.mark.requirement("R004-071")
@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("talk_rubbish", "its process sent an invalid frame"),
        ("say_unknown", "its process sent an invalid frame"),
        ("break_off", "exit code 9"),
    ],
)
def test_an_invalid_frame_ends_only_its_worker(notes: Notes, do: str, reason: str) -> None:
    """(JB-29)."""
    tasks, seen = Tasks(task(do)), Seen()
    with pool_of(notes, tasks, seen=seen):
        assert tasks.result().success
    assert [ended.reason.split(":")[0] for ended in seen.of(PoolWorkerEnded)] == [reason]


def test_an_endless_frame_ends_its_worker_and_costs_no_memory(notes: Notes) -> None:
    tasks, seen = Tasks(task("talk_without_end"), task("finish", "other")), Seen()
    tracemalloc.start()
    try:
        with pool_of(notes, tasks, seen=seen, slots=1):
            assert tasks.result().success
            assert tasks.result("other").success
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    [ended] = seen.of(PoolWorkerEnded)
    assert ended.reason.startswith("its process sent an invalid frame: its length is")


@pytest.mark.requirement("R004-034")
def test_only_results_of_a_workers_running_tasks_count_and_only_once(
    notes: Notes,
) -> None:
    """JB-30: late results and repeated results."""
    tasks = Tasks(*(task("sleep", f"s{n}") for n in range(3)))
    with pool_of(notes, tasks, size=2, slots=3) as pool:
        wait_until(lambda: len(notes.values("sleeping")) == 3)
        push(pool, tasks, task("answer_for_others", "liar"))
        assert tasks.result("liar").bytes_processed == 7
        push(pool, tasks, task("finish", "after"))
        assert tasks.result("after").success
    begun = [line.split() for line in notes.values("begin")]
    [place] = [pid for task_id, _, pid in begun if task_id == "liar"]
    elsewhere = {task_id for task_id, _, pid in begun if pid != place} - {"after"}
    answered = [result.task_id for result in tasks.results]
    assert elsewhere
    assert elsewhere.isdisjoint(answered)  # it can forge results of its own worker at most
    assert len(set(answered)) == len(answered)


def test_a_result_counts_even_if_its_worker_is_gone_before_all_is_read(notes: Notes) -> None:
    """A pass reads only so many frames, and the result is behind more than two passes read."""
    tasks, clock = Tasks(task("done_and_dead")), ManualClock()
    pool = WorkerPool(
        pool_work.work(notes.path), tasks, size=1, slots=1, max_attempts=1, clock=clock
    )
    try:
        wait_until(lambda: pool.tick() and not tasks.waiting)
        [pid] = pids(pool)
        wait_until(lambda: not is_alive(pid))
        pool.tick()  # notices the end
        clock.advance(5.0)
        pool.tick()  # gives up waiting for the group
        assert pid not in pids(pool)
        assert [result.bytes_processed for result in tasks.results] == [5]
    finally:
        pool.stop(0.0)
        wait_until(lambda: clock.advance(1.0) or (pool.tick() and not pool.list_workers()))


def test_killing_a_worker_ends_what_it_started_although_its_pipes_are_open(
    notes: Notes,
) -> None:
    process = ChildProcess(
        make_program(pool_work.work(notes.path), 1, 1.0), LivenessLimits(), SYSTEM_CLOCK
    )
    try:
        process.frames.send(1, wire.pack_task({"do": "have_children"}, "j", "t", 1, 1))
        child = notes.pid("child")
        process.end()
        # Also without the guard, which waits for the end of the pipe.
        wait_until(lambda: not is_alive(child) and not members(process.pid))
    finally:
        assert process.destroy() == "SIGKILL"


def test_a_pause_of_the_supervisor_is_not_counted_against_workers(notes: Notes) -> None:
    """After a laptop was suspended for a day, its pool continues."""
    tasks, seen, clock = Tasks(task("sleep")), Seen(), ManualClock()
    limits = {"response_timeout_seconds": 30.0, "task_timeout_seconds": 3600.0}
    with pool_of(notes, tasks, seen=seen, clock=clock, **limits) as pool:
        wait_until(lambda: notes.values("sleeping"))
        clock.advance(86_400.0)
        pool.wake()
        push(pool, tasks, task("finish", "after"))
        assert tasks.result("after").success
    assert seen.of(PoolWorkerEnded) == []


def test_whichever_workers_are_killed_every_task_is_finished_once_and_the_pool_recovers(
    notes: Notes,
) -> None:
    """I-JB-11: 200 tasks, frequent kills, and never two workers at one task."""
    chance, killed = random.Random(4), set[int]()
    tasks, seen = Tasks(*(task("finish", f"t{n}", seconds=0.01) for n in range(200))), Seen()
    with pool_of(notes, tasks, seen=seen, size=3, slots=2, max_attempts=1000) as pool:
        for kills in range(12):
            wait_until(lambda kills=kills: len(tasks.results) >= kills * 15)
            # One that was killed may still be listed, if the pool has no time to look at it.
            alive = wait_until(lambda: [p for p in pids(pool) if lives(p) and p not in killed])
            killed.add(victim := chance.choice(alive))
            os.kill(victim, chance.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM]))
        wait_until(lambda: len(tasks.results) == 200)
        wait_until(lambda: len(pids(pool)) == 3 and all(is_alive(p) for p in pids(pool)))
        started = {event.pid for event in seen.of(PoolWorkerStarted)}
        wait_until(lambda: {pid for pid in started if members(pid)} == set(pids(pool)))
    assert all(result.success for result in tasks.results)
    assert len({result.task_id for result in tasks.results}) == 200
    assert notes.values("overlap") == []
    assert {event.pid for event in seen.of(PoolWorkerEnded)} >= killed


def lives(pid: int) -> bool:
    try:
        return b"holdfast.exports.pool.worker_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# -- cancelling and stopping


def test_the_tasks_of_a_cancelled_job_are_returned_and_those_of_others_go_on(
    notes: Notes,
) -> None:
    """JB-13."""
    tasks = Tasks(task("sleep", "a", "one"), task("sleep", "b", "one"), task("sleep", "c"))
    with pool_of(notes, tasks) as pool:
        pool.cancel("one")
        wait_until(lambda: sorted(tasks.back) == ["a", "b"])
        assert running(pool) == ["c"]
        push(pool, tasks, task("finish", "again", "one"))
        assert tasks.result("again").success
    assert [result.task_id for result in tasks.results] == ["again"]


def test_a_task_cancelled_by_mistake_is_returned_and_does_not_fail(notes: Notes) -> None:
    """The job was resumed while tasks of its last run were being cancelled."""
    tasks = Tasks(task("sleep", "a", "one"))
    with pool_of(notes, tasks) as pool:
        pool.cancel("one")
        wait_until(lambda: tasks.back == ["a"])
        push(pool, tasks, task("sleep", "b", "one"))
        wait_until(lambda: tasks.back == ["a", "b"])
    assert tasks.results == []


def test_a_cancelled_task_is_not_done_again_when_its_worker_ends(notes: Notes) -> None:
    tasks = Tasks(task("take_too_long"))
    with pool_of(notes, tasks) as pool:
        wait_until(lambda: notes.values("begin"))
        pool.cancel("j")
        wait_until(
            lambda: len(notes.values("cancel")) >= 2
        )  # the request is repeated until the task stops
        os.kill(pids(pool)[0], signal.SIGKILL)
        wait_until(lambda: tasks.back == ["t"])
    assert len(notes.values("begin")) == 1


def test_stopping_lets_work_finish_within_its_time_and_returns_the_rest(
    notes: Notes,
) -> None:
    """JB-27, for the pool."""
    tasks = Tasks(task("finish", "soon", seconds=0.5), task("sleep", "never"))
    tasks.waiting.extend([task("finish", "waits")])
    with pool_of(notes, tasks, size=2, slots=1) as pool:
        wait_until(lambda: notes.values("sleeping"))
        stopping = threading.Thread(target=pool.stop, args=(WAIT_TIMEOUT_SECONDS,))
        stopping.start()
        assert tasks.result("soon").success
        assert stopping.is_alive()
        assert running(pool) == ["never"]
        before = time.monotonic()
        pool.stop(0.0)  # a second stop with less time
        assert time.monotonic() - before < WAIT_TIMEOUT_SECONDS / 2
        stopping.join(WAIT_TIMEOUT_SECONDS)
        assert pool.list_workers() == []
    assert tasks.back == ["never"]
    assert [t.task_id for t in tasks.waiting] == ["waits"]


@pytest.mark.requirement("R004-030")
def test_there_are_four_workers_and_idle_ones_close_their_work_before_they_end(
    notes: Notes,
) -> None:
    with pytest.raises(ConfigError, match="min_size must be at most size, 4, not 5"):
        WorkerPool(pool_work.work(notes.path), Tasks(), min_size=5)
    pool = WorkerPool(pool_work.work(notes.path), Tasks(), min_size=4)
    try:
        pool.start()
        before = sorted(str(pid) for pid in pids(pool))
    finally:
        pool.stop(0.0)
    assert len(before) == 4
    assert sorted(notes.values("close")) == before


@pytest.mark.requirement("R004-020")
def test_nothing_is_left_after_many_starts_and_stops(notes: Notes) -> None:
    """I-JB-14: no thread, process or descriptor."""
    with pool_of(notes, Tasks()):
        pass  # the first run may leave something permanently, such as a cached module
    leftovers = Leftovers()
    for round_ in range(8):
        tasks = Tasks(task("finish"))
        with pool_of(notes, tasks):
            if round_ % 4:
                tasks.result()
    assert (leftovers.descriptors, leftovers.threads) == (set(), set())
    assert [pid for pid in notes.values("made") if members(int(pid))] == []


def test_starting_and_stopping_may_be_repeated_or_left_out(notes: Notes) -> None:
    """JB-42."""
    never = WorkerPool(pool_work.work(notes.path), Tasks())
    never.wake()
    never.cancel("j")
    never.stop(1.0)
    never.stop(1.0)
    with pytest.raises(RuntimeError, match="cannot be started again"):
        never.start()
    with pool_of(notes, Tasks()) as pool:
        pool.start()
        assert len(pids(pool)) == 1
        pool.stop(0.0)
        pool.stop(0.0)
        pool.wake()
        pool.cancel("j")
        assert pool.list_workers() == []


def test_a_wake_up_ends_the_next_wait_once() -> None:
    pipe = WakeupPipe()
    pipe.wake()  # it is closed, so nothing happens
    pipe.open()
    try:
        pipe.wake()
        before = time.monotonic()
        pipe.wait(poll(), WAIT_TIMEOUT_SECONDS)
        assert time.monotonic() - before < WAIT_TIMEOUT_SECONDS / 2
        before = time.monotonic()
        pipe.wait(poll(), 0.05)
        assert time.monotonic() - before >= 0.04
    finally:
        pipe.close()


def test_a_source_that_raises_does_not_end_the_pool(notes: Notes) -> None:
    class Clumsy(Tasks):
        def take(self) -> Assignment | None:
            given = super().take()
            if given is not None and given.task_id == "lost":
                raise LookupError("clumsy")
            return given

    tasks = Clumsy(task("finish", "lost"))
    with pool_of(notes, tasks) as pool:
        wait_until(lambda: not tasks.waiting)
        push(pool, tasks, task("finish", "kept"))
        assert tasks.result("kept").success


class ClumsyClock(SystemClock):
    """A clock that fails `failures` times, which makes passes of the pool fail."""

    failures = 0

    def monotonic(self) -> float:  # type: ignore[override]
        if self.failures:
            self.failures -= 1
            raise LookupError("clumsy")
        return super().monotonic()


def test_a_pass_that_fails_does_not_end_the_running_tasks(
    notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    tasks, clock = Tasks(task("finish", seconds=0.5)), ClumsyClock()
    with pool_of(notes, tasks, clock=clock) as pool:
        wait_until(lambda: notes.values("begin"))
        clock.failures = 1
        pool.wake()
        assert tasks.result().success
    assert "a pass of holdfast-pool failed" in caplog.text
    assert len(notes.values("begin")) == 1


# -- pools that cannot start


def test_a_first_pass_that_fails_makes_the_start_fail(notes: Notes) -> None:
    clock = ClumsyClock()
    pool = WorkerPool(pool_work.work(notes.path), Tasks(), clock=clock)
    clock.failures = 1
    with pytest.raises(ConfigError, match="a pass failed: LookupError"):
        pool.start()
    assert pool.list_workers() == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            pool_work.broken,
            "the task handler cannot be created: LookupError: no such bucket at https://…@bucket/?…",
        ),
        (pool_work.dies_at_once, "worker processes exit before they are ready: exit code 11"),
    ],
)
def test_a_factory_that_fails_makes_the_start_fail_with_its_reason(
    make: Any, reason: str
) -> None:
    seen = Seen()
    pool = WorkerPool(make, Tasks(), size=2, events=Events(seen))
    with pytest.raises(ConfigError) as raised:
        pool.start()
    assert str(raised.value) == reason
    assert pool.list_workers() == []
    assert [e.pid for e in seen.of(PoolWorkerStarted) if members(e.pid)] == []
    assert "secret" not in repr(seen.events)


def test_a_worker_that_dies_at_once_is_replaced_with_growing_delays() -> None:
    slot = WorkerSlot()
    pauses = []
    for _ in range(12):
        slot.delay_next(100.0)
        pauses.append(slot.not_before - 100.0)
    longest = [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert all(
        most / 2 - 1e-6 <= pause <= most + 1e-6
        for pause, most in zip(pauses, longest, strict=True)
    )


def test_work_that_cannot_be_pickled_and_invalid_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="importable module"):
        WorkerPool(lambda: pool_work.PoolWork(""), Tasks())
    for wrong in ({"size": 0}, {"slots": 0}, {"max_attempts": 0}):
        with pytest.raises(ConfigError, match="at least 1, not 0"):
            WorkerPool(pool_work.broken, Tasks(), **wrong)
    for wrong in ({"task_timeout_seconds": 0.0}, {"response_timeout_seconds": float("nan")}):
        with pytest.raises(ConfigError, match="must be more than 0"):
            WorkerPool(pool_work.broken, Tasks(), **wrong)


# -- the pool's own process ends


PARENT = """
import signal, sys, time
from pathlib import Path
from holdfast.exports.pool.pool import WorkerPool
from holdfast.exports.pool.worker import Assignment
from support.workers import pool_work

class Source:
    tasks = [Assignment("j", "t", {"do": sys.argv[2]})]
    def take(self): return self.tasks.pop() if self.tasks else None
    def finish(self, result): pass
    def give_back(self, assignment): pass

if sys.argv[3] == "ignore":
    signal.signal(signal.SIGINT, lambda *_: None)
pool = WorkerPool(pool_work.work(Path(sys.argv[1])), Source(), size=2, min_size=2)
Path(sys.argv[1]).write_text("starting now\\n")
pool.start()
if sys.argv[3] == "stay":
    try:
        with open(sys.argv[1], "a") as notes:
            notes.write("staying now\\n")
        time.sleep(600)
    except KeyboardInterrupt:
        pool.stop(0.0)
        sys.exit(3)
else:
    time.sleep(0.5)
"""


@contextmanager
def parent(notes: Notes, do: str, mode: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(notes.path), do, mode],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=make_child_environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT_TIMEOUT_SECONDS)


@pytest.mark.parametrize("do", ["have_children", "hold_the_gil"])
def test_no_worker_outlives_its_pool(notes: Notes, do: str) -> None:
    with parent(notes, do, "stay") as process:
        wait_until(lambda: notes.values("begin"))
        workers = wait_until(lambda: two(notes))
        process.kill()
        wait_until(lambda: not any(members(pid) for pid in workers))


def two(notes: Notes) -> list[int]:
    made = [int(pid) for pid in notes.values("made")]
    return made if len(made) == 2 else []


def test_a_worker_whose_pipes_close_ends_with_everything_it_started(notes: Notes) -> None:
    """A killed pool only closes its pipes, if the kernel is quick."""
    program = make_program(pool_work.work(notes.path), 1, 1.0)
    process = ChildProcess(program, LivenessLimits(), SYSTEM_CLOCK)
    try:
        process.frames.send(1, wire.pack_task({"do": "have_children"}, "j", "t", 1, 1))
        child = notes.pid("child")
        process.close_pipes()
        wait_until(lambda: process.poll_exit() is not None and not is_alive(child))
    finally:
        process.end()
        wait_until(lambda: not members(process.pid))


def test_a_program_that_never_stops_its_pool_ends_and_so_do_the_workers(notes: Notes) -> None:
    with parent(notes, "have_children", "leave") as process:
        assert process.wait(WAIT_TIMEOUT_SECONDS) == 0
        wait_until(lambda: not any(members(pid) for pid in two(notes)))


def test_only_the_pool_handles_ctrl_c_and_its_workers_do_not_get_it(notes: Notes) -> None:
    with parent(notes, "have_children", "stay") as process:
        workers = wait_until(lambda: two(notes))
        notes.pid("child")
        wait_until(lambda: notes.values("staying"))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
        assert process.returncode == 3
        assert errors == ""
        assert not any(members(pid) for pid in workers)
        assert len(notes.values("close")) == 1  # the idle worker ended by itself


def test_workers_that_are_just_starting_do_not_get_ctrl_c(notes: Notes) -> None:
    with parent(notes, "finish", "ignore") as process:
        wait_until(lambda: notes.values("starting"))
        while len(notes.values("made")) < 2:
            assert process.poll() is None
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.005)
        _, errors = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
        assert (process.returncode, errors) == (0, "")
        assert len(notes.values("made")) == 2
