"""overhead: what a worker adds to a loop of poll and ack. recovery: redelivery after a kill."""

import os
import signal
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from bench.cycles import fill_queue
from bench.own_queues import FILES, SQLITE, open_files_at, open_sqlite_at
from bench.payload import BenchTask, task
from bench.report import Bar, Result, at_most
from bench.session import Figures, Session, in_fresh_process
from holdfast.events import Completed, Event
from holdfast.worker.runner import Context
from holdfast.worker.worker import Worker

# In the first tasks the worker learns the pace of the handlers, and every slot opens its files
# or its database.
WARM_UP = 500
MIN_RATIO = 0.97  # four threads and one are equally fast, so their ratio shows the noise


# -- overhead

BARE = "files: bare loop of poll and ack"
THREAD, FOUR_THREADS = "files: worker, one thread", "files: worker, four threads"
PROCESSES = "files: worker, two processes"
SQLITE_THREAD = "SQLite: worker, one thread"
SQLITE_FOUR_THREADS = "SQLite: worker, four threads"
SLOTS = {
    BARE: 0, THREAD: 1, FOUR_THREADS: 4, PROCESSES: 2, SQLITE_THREAD: 1, SQLITE_FOUR_THREADS: 4,
}  # fmt: skip


def run_overhead(session: Session) -> Result:
    """Compare the bare loop with workers of each kind."""
    title = "What the worker adds, with an empty handler"
    contenders = {way: partial(_measure, session, way) for way in SLOTS}
    measured = session.measure(title, contenders, rounds=2 * session.rounds)
    rate = measured.median(PROCESSES)
    return Result(
        title,
        ("", "tasks/s"),
        measured.make_rows(("rate", "{:,.0f}")),
        [
            at_most(
                "thread isolation within 1.5 × of the bare loop",
                measured.ratio(BARE, THREAD),
                1.5,
                "×",
            ),
            *(
                Bar(f"{four} as fast as one", measured.ratio(four, one), MIN_RATIO, "×")
                for four, one in ((FOUR_THREADS, THREAD), (SQLITE_FOUR_THREADS, SQLITE_THREAD))
            ),
            Bar("process isolation at least 2,000 tasks/s", rate, 2_000, "tasks/s"),
        ],
        measured,
        "One thread runs empty handlers in any case (ADR 27), so four are as fast as one.",
    )


def _measure(session: Session, way: str) -> Figures:
    count = session.size(10_000, 2_000)
    card = SQLITE if way.startswith("SQLite") else FILES
    with session.arena.room(way) as path:
        queue = fill_queue(session, card, path, count)
        return in_fresh_process(measure_tasks, way, queue, count)


def measure_tasks(way: str, path: Path, count: int) -> Figures:
    """Measure up to the last task, without starting, the warm-up and stopping."""
    queue = (open_sqlite_at if way.startswith("SQLite") else open_files_at)(path)
    if way == BARE:
        times = _run_bare_loop(queue)
    elif way == PROCESSES:
        times = _time_processes(queue, SLOTS[way])
    else:
        times = time_tasks(queue, SLOTS[way])
    assert len(times) == count, f"{way}: {len(times):,} of {count:,} were handled"
    return {"rate": (count - 1 - WARM_UP) / (max(times) - sorted(times)[WARM_UP])}


def _run_bare_loop(queue: Any) -> list[float]:
    times = []
    while claimed := queue.poll(queue.poll_batch):
        for message in claimed:
            times.append(perf_counter())
            queue.ack(message)
    return times


def time_tasks(queue: Any, concurrency: int) -> list[float]:
    """Run a worker until the queue is empty and return when each task began."""
    times: list[float] = []

    def note_time(message: BenchTask) -> None:
        times.append(perf_counter())

    Worker(queue, note_time, concurrency=concurrency).run(until_empty=True)
    return times


def do_nothing(message: BenchTask) -> None:
    """Do nothing, to measure the cost of the worker."""


def _time_processes(queue: Any, concurrency: int) -> list[float]:
    """Take the times from the worker's events, because handlers run in other processes."""
    times: list[float] = []

    def note_time(event: Event) -> None:
        if isinstance(event, Completed):
            times.append(perf_counter())

    queue.events.subscribe(note_time)
    worker = Worker(queue, do_nothing, concurrency=concurrency, isolation="process")
    worker.run(until_empty=True)
    return times


# -- recovery

LEASE_SECONDS = 3.0
WAIT_TIMEOUT_SECONDS = 30.0


def run_recovery(session: Session) -> Result:
    """Kill workers, and measure how soon another one gets the message."""
    title = "Redelivery after SIGKILL of the worker"
    ages = (2, session.size(20, 7))  # the second is longer than several leases
    contenders = {
        f"{isolation} isolation, killed {age} s into the task": partial(
            _measure_redelivery, session, isolation, age
        )
        for isolation in ("thread", "process")
        for age in ages
    }
    measured = session.measure(title, contenders, rounds=min(session.rounds, 2))
    longest = max(max(measured.read(name, "seconds")) for name in contenders)
    promise = f"redelivered within the lease ({LEASE_SECONDS:g} s) + 1 s, at any age"
    return Result(
        title,
        ("", "until another process holds the task"),
        measured.make_rows(("seconds", "{:.2f} s")),
        [at_most(promise, longest, LEASE_SECONDS + 1, "s")],
        measured,
    )


def _measure_redelivery(session: Session, isolation: str, age_seconds: float) -> Figures:
    with session.arena.room(isolation) as path:
        began = path / "began"
        queue = open_files_at(path, lease_seconds=LEASE_SECONDS)
        queue.push(task(1).model_copy(update={"note": str(began)}))
        worker = get_context("spawn").Process(target=work_endlessly, args=(isolation, path))
        worker.start()
        give_up_at = monotonic() + WAIT_TIMEOUT_SECONDS
        while not began.exists():
            assert monotonic() < give_up_at, "the worker never began"
            sleep(0.01)
        sleep(age_seconds)
        os.kill(worker.pid or 0, signal.SIGKILL)
        killed_at = monotonic()
        worker.join()
        again = queue.poll(wait_seconds=WAIT_TIMEOUT_SECONDS)
        waited = monotonic() - killed_at
        assert [message.attempts for message in again] == [2], "the task did not come back"
        queue.ack(again[0])
        queue.close()
    return {"seconds": waited}


def work_endlessly(isolation: Any, path: Path) -> None:
    """Run a worker until it is killed."""
    Worker(
        open_files_at(path, lease_seconds=LEASE_SECONDS), _never_end, isolation=isolation
    ).run()


def _never_end(message: BenchTask, ctx: Context) -> None:
    """Create the file named in the note, and never end."""
    Path(message.note).touch()
    while not ctx.lost.is_set():
        time.sleep(0.05)
