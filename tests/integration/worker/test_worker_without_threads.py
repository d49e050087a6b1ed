"""A machine without free threads: claimed messages are not withheld from other workers."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from holdfast.events import Event, Events
from holdfast.exports.engine import EngineSettings, JobEngine
from holdfast.exports.events import PoolWorkerStarted
from holdfast.exports.model import TaskResult
from holdfast.exports.pool.pool import WorkerPool
from holdfast.exports.pool.worker import Assignment
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import AnyMessage
from holdfast.testing import MemoryQueue
from holdfast.worker.worker import Worker
from support.exports.simulated_step_functions import SimulatedStepFunctions
from support.leftovers import Leftovers
from support.paths import TESTS
from support.waiting import wait_until
from support.workers import pool_work
from support.workers.notes import Notes, is_alive
from support.workers.running import running

TOO_LARGE = 1 << 46  # no address space has room for such a stack


@pytest.fixture(autouse=True)
def _restore_stack_size() -> Iterator[None]:
    yield
    threading.stack_size(0)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_when_only_some_slots_get_a_thread_nothing_is_claimed(isolation: str) -> None:
    """Run in another process, which has address space for only a few more threads."""
    program = f"""
        import resource, threading
        from pathlib import Path
        from holdfast.queue.message import AnyMessage
        from holdfast.worker.worker import Worker
        from holdfast.testing import MemoryQueue
        from child_handlers import sleep

        def main():
            queue = MemoryQueue(AnyMessage)
            queue.push_many([AnyMessage(id=str(n), notes="/dev/null") for n in range(8)])
            used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
            threading.stack_size(64 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
            worker = Worker(queue, sleep, concurrency=8, isolation="{isolation}")
            try:
                worker.run()
            except RuntimeError as error:
                stats = queue.stats()
                attempts = [message.attempts for message in queue.poll(8)]
                print(error, stats.ready, stats.leased, attempts)

        if __name__ == "__main__":
            main()
    """
    ran = subprocess.run(
        [sys.executable, "-c", dedent(program)],
        env={
            "MALLOC_ARENA_MAX": "1",
            "PYTHONPATH": f"{TESTS}:{Path(__file__).parent}",
            "PATH": "/usr/bin",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout.strip() == f"can't start new thread 8 0 {[1] * 8}", ran.stderr


def test_a_coroutine_that_ends_when_no_thread_is_available_is_still_settled() -> None:
    queue = MemoryQueue(AnyMessage)
    queue.push(AnyMessage(id="m"))

    async def use_up_the_threads(message: AnyMessage) -> None:
        threading.stack_size(TOO_LARGE)

    with running(Worker(queue, use_up_the_threads, isolation="async", concurrency=4)):
        wait_until(lambda: queue.stats().completed == 1)
        threading.stack_size(0)


def test_without_a_thread_for_the_loop_the_run_ends_and_claims_nothing() -> None:
    queue = MemoryQueue(AnyMessage)
    queue.push(AnyMessage(id="m"))

    async def never(message: AnyMessage) -> None:
        raise AssertionError

    with LeaseKeeper() as keeper:
        worker = Worker(queue, never, isolation="async", keeper=keeper)
        threading.stack_size(TOO_LARGE)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.run()
    assert queue.stats().ready == 1


def test_a_job_engine_that_cannot_start_completely_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    notes = Notes(tmp_path / "notes")

    def use_up_the_threads(event: Event) -> None:
        if isinstance(event, PoolWorkerStarted):
            threading.stack_size(TOO_LARGE)

    engine = JobEngine(
        MemoryJobs(),
        pool_work.work(notes.path),
        lambda task: {},
        lambda request: iter(()),
        SimulatedStepFunctions(),
        settings=EngineSettings(pool_size=1),
        events=Events(use_up_the_threads),
    )
    with pytest.raises(RuntimeError, match="can't start new thread"), engine:
        raise AssertionError
    assert engine.pool.list_workers() == []
    assert not is_alive(int(notes.values("made")[0]))


def test_a_pool_without_a_thread_leaves_no_descriptor_open_and_can_be_stopped(
    tmp_path: Path,
) -> None:
    pool = WorkerPool(pool_work.work(tmp_path / "notes"), NoTasks())
    leftovers = Leftovers()
    threading.stack_size(TOO_LARGE)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.start()
    assert leftovers.descriptors == set()
    pool.stop(0.0)


class NoTasks:
    def take(self) -> Assignment | None:
        return None

    def finish(self, result: TaskResult) -> None: ...

    def give_back(self, assignment: Assignment) -> None: ...
