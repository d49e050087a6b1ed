"""recovery: measure how soon another worker gets the message of a killed worker."""

import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from bench.handlers import endless
from bench.holdfast import open_queue_at
from bench.payload import task
from bench.session import Session
from bench.verdict import Bar, Result
from holdfast.worker.worker import Isolation, Worker

NAME = "recovery"
TITLE = "Redelivery after SIGKILL of the worker"
LEASE_SECONDS = 3.0
GRACE_SECONDS = 1.0
WAIT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Case:
    """One case to measure."""

    isolation: Isolation
    age_seconds: float

    def __str__(self) -> str:
        return f"{self.isolation} isolation, killed {self.age_seconds:g} s into the task"


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    ages = (2, session.size(20, 7))  # the second is longer than several leases
    isolations: tuple[Isolation, ...] = ("thread", "process")
    cases = [Case(isolation, age) for isolation in isolations for age in ages]
    waits: dict[Case, list[float]] = {case: [] for case in cases}
    for case in session.interleaved(TITLE, cases, rounds=min(session.rounds, 2)):
        with session.arena.room(case.isolation) as path:
            waits[case].append(seconds_until_redelivered(case, path))
    return _result(waits)


def seconds_until_redelivered(case: Case, path: Path) -> float:
    """Return the seconds from the kill to the redelivery."""
    began = path / "began"
    queue = open_queue_at(path, lease_seconds=LEASE_SECONDS)
    queue.push(task(1).model_copy(update={"note": str(began)}))
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(case, path))
    worker.start()
    try:
        _wait_for(began)
        sleep(case.age_seconds)
    finally:
        os.kill(worker.pid or 0, signal.SIGKILL)
        killed_at = monotonic()
        worker.join()
    again = queue.poll(wait_seconds=WAIT_TIMEOUT_SECONDS)
    waited = monotonic() - killed_at
    assert [message.attempts for message in again] == [2], "the task did not come back"
    queue.ack(again[0])
    queue.close()
    return waited


def work(case: Case, path: Path) -> None:
    """Run a worker until it is killed."""
    queue = open_queue_at(path, lease_seconds=LEASE_SECONDS)
    Worker(queue, endless, isolation=case.isolation).run()


def _wait_for(file: Path) -> None:
    give_up_at = monotonic() + WAIT_TIMEOUT_SECONDS
    while not file.exists():
        assert monotonic() < give_up_at, "the worker never began"
        sleep(0.01)


def _result(waits: dict[Case, list[float]]) -> Result:
    longest = max(max(figures) for figures in waits.values())
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "shortest", "longest"),
        rows=[
            [str(case), f"{min(figures):.2f} s", f"{max(figures):.2f} s"]
            for case, figures in waits.items()
        ],
        bars=[
            Bar(
                f"redelivered within the lease ({LEASE_SECONDS:g} s) + 1 s, at any age",
                longest,
                LEASE_SECONDS + GRACE_SECONDS,
                "s",
                at_least=False,
            )
        ],
        notes=("Counted from the kill to the moment another process holds the task.",),
    )
