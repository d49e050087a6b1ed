"""SIGKILL before every call of the store and of Step Functions, in a job's whole life.

One process runs a job over SQLite and is killed before its k-th call. The next one gets the
same message, as from the queue, and may be killed as well; the last one may finish.
Afterwards the counters equal the rows, exactly one callback was accepted and matches the
status, no token is left, and tasks that were counted were not done again.

 (JB-01, JB-06, JB-07, JB-14, JB-15, JB-16, JB-28).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from holdfast.exports.dispatcher import TaskDispatcher
from holdfast.exports.model import (
    ExportJob,
    JobError,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.exports.pool.ports import Assignment
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.runner import JobRunner
from holdfast.exports.sqlite_jobs import SQLiteJobs
from holdfast.exports.tracker import JobTracker
from support.exports.crashing import Crashing, LedgerStepFunctions
from support.exports.inline_pool import InlinePool
from support.fork_server import run_in_small_child

TOKEN = "token-of-the-first-execution"
SECOND = "token-of-a-second-execution"


class SilentHeartbeats:
    """Ignores the calls of the runner."""

    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


@dataclass(frozen=True)
class Case:
    """A job and the executions that request it."""

    tasks: int = 3
    failing: bool = False
    token: str | None = TOKEN
    second: str | None = None
    """The token of another execution, which requests the job after the first kill."""

    def make_request(self, token: str | None) -> JobRequest:
        """Make the request of the job's message."""
        specs = [TaskSpec(url=f"https://files.example/{n}") for n in range(self.tasks)]
        return JobRequest(
            "abc-123", "export", "user", TaskToken(token) if token else None, tuple(specs)
        )


class JobProcess:
    """One process that gets the job's message."""

    def __init__(self, folder: Path, case: Case, token: str | None) -> None:
        self.folder, self.case, self.token = folder, case, token

    def run(self, crash_at: int) -> int:
        """Run the job, and return how many calls it made if it was not killed."""
        crashing = Crashing(crash_at)
        store = SQLiteJobs(self.folder / "jobs.db", durability="process")
        jobs = crashing.wrap(store)
        step_functions = crashing.wrap(LedgerStepFunctions(self.folder / "callbacks"))
        tracker = JobTracker(jobs, step_functions, again_after_seconds=0.0)
        dispatcher = TaskDispatcher(jobs, tracker, lambda task: {"key": task.key})
        InlinePool(dispatcher, self.do)
        runner = JobRunner(
            jobs,
            tracker,
            dispatcher,
            SilentHeartbeats(),
            lambda request: iter(()),
            step_functions,
        )
        job = runner.run(self.case.make_request(self.token), lost=Event())
        assert job.terminal, job
        store.close()
        return crashing.calls

    def do(self, task: Assignment) -> TaskResult:
        """Do a task, and note it in a file."""
        with (self.folder / "done").open("a") as done:
            done.write(f"{task.payload['key']}\n")
        if self.case.failing and task.payload["key"] == "0":
            error = JobError("Http404", "gone")
            return TaskResult(task.job_id, task.task_id, False, 0, error)
        return TaskResult(task.job_id, task.task_id, True, 5)


CASES = {
    "three tasks": Case(),
    "no task": Case(tasks=0),
    "one of two fails": Case(tasks=2, failing=True),
    "no token": Case(tasks=1, token=None),
    "another execution requests it": Case(tasks=2, second=SECOND),
}


def count_calls(folder: Path, case: Case) -> int:
    """Return how many calls a run without a kill makes."""
    folder.mkdir()
    return JobProcess(folder, case, case.token).run(0)


def run_job(
    folder: Path, case: Case, token: str | None, crash_at: int, say: Callable[[str], None]
) -> None:
    """Be the process that is killed before this call, or finishes."""
    JobProcess(folder, case, token).run(crash_at)


def play(folder: Path, case: Case, crashes: Sequence[int]) -> None:
    """Run processes that are killed before these calls, then one that finishes."""
    folder.mkdir()
    runs = [(case.token, at) for at in crashes]
    runs += [(case.second, 0)] if case.second else []
    runs += [(case.token, 0)]  # its message was never acked, so it is delivered again
    killed = [
        run_in_small_child(partial(run_job, folder, case, token, crash_at)).killed
        for token, crash_at in runs
    ]
    assert killed[0]  # a later one may finish before its kill
    assert not any(killed[len(crashes) :])
    check(folder, case, len(runs))


def check(folder: Path, case: Case, runs: int) -> None:
    """Check that counters, rows, status and callbacks agree."""
    with SQLiteJobs(folder / "jobs.db") as store:
        job = store.find_by_id("abc-123")
        rows = store.tasks("abc-123")
    assert job is not None
    assert job.terminal
    done = sum(row.status is TaskStatus.COMPLETED for row in rows)
    failed = sum(row.status is TaskStatus.FAILED for row in rows)
    assert (job.state.completed_tasks, job.state.failed_tasks) == (done, failed)
    assert done + failed == len(rows) == job.state.total_tasks == case.tasks
    assert job.task_token is None
    ledger = LedgerStepFunctions(folder / "callbacks")
    for token in filter(None, (case.token, case.second)):
        callbacks = ledger.list_accepted(token)
        assert len(callbacks) == 1, f"{len(callbacks)} callbacks"
        superseded = callbacks[0].get("error") == "Superseded"
        assert superseded or (callbacks[0]["kind"] == "success") == (failed == 0)
    assert job.status == ("FAILED" if failed else "COMPLETED")
    # After a kill, only tasks that were not counted may be done again.
    times = (folder / "done").read_text().split() if case.tasks else []
    assert len(times) <= case.tasks * runs


@pytest.mark.requirement("R004-048", "R004-051")
@pytest.mark.parametrize("name", CASES)
def test_a_job_survives_a_kill_before_each_of_its_calls(name: str, fast_path: Path) -> None:
    case = CASES[name]
    calls = count_calls(fast_path / "count", case)
    assert calls > 5
    for at in range(1, calls + 1):
        play(fast_path / f"k{at}", case, [at])


@pytest.mark.parametrize("name", ["three tasks", "another execution requests it"])
def test_a_job_survives_a_kill_in_its_recovery_too(name: str, fast_path: Path) -> None:
    case = CASES[name]
    calls = count_calls(fast_path / "count", case)
    for first in range(2, calls + 1, 3):
        for second in range(1, calls + 1, 4):
            play(fast_path / f"k{first}-{second}", case, [first, second])
