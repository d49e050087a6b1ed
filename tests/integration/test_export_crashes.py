"""SIGKILL before every call of the store and of Step Functions, in the job's whole life.

One process runs a job over SQLite and is killed before its k-th call; the next one gets
the same message, as from the queue, and may be killed as well; the last one may finish.
Afterwards the counters equal the rows, exactly one callback was accepted and says what the
status says, no token is left, and what was counted was not done again.

JB-01, 06, 07, 14, 15, 16, 28; I-JB-1…5; R004-051.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from holdfast.adapters.local.sqlite import SQLiteJobs
from holdfast.jobs.dispatcher import TaskDispatcher
from holdfast.jobs.model import (
    ExportJob,
    JobError,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.jobs.pool.pool import Assignment
from holdfast.jobs.request import JobRequest, TaskSpec
from holdfast.jobs.runner import JobRunner
from holdfast.jobs.tracker import JobTracker
from jobs.crashing import Crashing, LedgerStepFunctions, in_child
from jobs.inline_pool import InlinePool

TOKEN = "token-of-the-first-execution"
SECOND = "token-of-a-second-execution"


class Silent:
    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


@dataclass(frozen=True)
class Case:
    tasks: int = 3
    failing: bool = False
    token: str | None = TOKEN
    second: str | None = None
    """Of another execution, which asks when the first process was killed."""

    def request(self, token: str | None) -> JobRequest:
        specs = [TaskSpec(url=f"https://files.example/{n}") for n in range(self.tasks)]
        return JobRequest(
            "abc-123", "export", "user", TaskToken(token) if token else None, tuple(specs)
        )


class Life:
    """One process that gets the job's message."""

    def __init__(self, folder: Path, case: Case, token: str | None) -> None:
        self.folder, self.case, self.token = folder, case, token

    def run(self, crash_at: int) -> int:
        """How many calls it made, all told; it writes that down when it lives."""
        crashing = Crashing(crash_at)
        store = SQLiteJobs(self.folder / "jobs.db", durability="process")
        jobs = crashing.before(store)
        step_functions = crashing.before(LedgerStepFunctions(self.folder / "callbacks"))
        tracker = JobTracker(jobs, step_functions, again_after_seconds=0.0)
        dispatcher = TaskDispatcher(jobs, tracker, lambda task: {"key": task.key})
        InlinePool(dispatcher, self.do)
        runner = JobRunner(
            jobs, tracker, dispatcher, Silent(), lambda request: iter(()), step_functions
        )
        job = runner.run(self.case.request(self.token), lost=Event())
        assert job.terminal, job
        store.close()
        return crashing.calls

    def do(self, task: Assignment) -> TaskResult:
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
    "nobody waits": Case(tasks=1, token=None),
    "another execution asks": Case(tasks=2, second=SECOND),
}


def calls_of(folder: Path, case: Case) -> int:
    folder.mkdir()
    return Life(folder, case, case.token).run(0)


def play(folder: Path, case: Case, crashes: Sequence[int]) -> None:
    folder.mkdir()
    turns = [(case.token, at) for at in crashes]
    turns += [(case.second, 0)] if case.second else []
    turns += [(case.token, 0)]  # its message was never acked, so it comes again
    for token, crash_at in turns:
        code = in_child(partial(Life(folder, case, token).run, crash_at))
        assert code in (0, -signal.SIGKILL), f"{turns} ended with {code}"
        assert code == 0 or crash_at
    check(folder, case, len(turns))


def check(folder: Path, case: Case, turns: int) -> None:
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
        answers = ledger.accepted(token)
        assert len(answers) == 1, f"{len(answers)} answers"
        superseded = answers[0].get("error") == "Superseded"
        assert superseded or (answers[0]["kind"] == "success") == (failed == 0)
    assert job.status == ("FAILED" if failed else "COMPLETED")
    # Killed once, a process may repeat what it had not counted; never what it had.
    times = (folder / "done").read_text().split() if case.tasks else []
    assert len(times) <= case.tasks * turns


@pytest.mark.parametrize("name", CASES)
def test_a_job_survives_a_kill_before_each_of_its_calls(name: str, fast_path: Path) -> None:
    case = CASES[name]
    calls = calls_of(fast_path / "count", case)
    assert calls > 5
    for at in range(1, calls + 1):
        play(fast_path / f"k{at}", case, [at])


@pytest.mark.parametrize("name", ["three tasks", "another execution asks"])
def test_a_job_survives_a_kill_in_its_recovery_too(name: str, fast_path: Path) -> None:
    case = CASES[name]
    calls = calls_of(fast_path / "count", case)
    for first in range(2, calls + 1, 3):
        for second in range(1, calls + 1, 4):
            play(fast_path / f"k{first}-{second}", case, [first, second])
