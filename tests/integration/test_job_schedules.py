"""Every interleaving of those who count, seal, finish and judge a job, and every death.

The real tracker runs over a store on plain values; each call of a port is a place where
another actor may go on, or where this one is killed. Afterwards somebody comes, as the
job's message does, does what the store says is not done, and the reconciler passes.

JB-01…09, 12, 13, 46; I-JB-1…5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from fs.schedule import Baton, Policy, Scripted, explore
from holdfast.jobs.errors import CallbackUnclear, TokenClosed
from holdfast.jobs.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskStatus,
)
from holdfast.jobs.reconciler import Reconciler
from holdfast.jobs.tracker import JobTracker
from holdfast.testing import ManualClock
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs
from holdfast.testing.stepfunctions import SimulatedStepFunctions, TokenState
from jobs.stepping import Doom, Stepping, mortal

JOB = "job-1"
Life = Callable[[JobTracker, Any], None]


@dataclass
class Case:
    """A job that was begun: its tasks, and whose lives meet."""

    lives: Sequence[Life]
    tasks: int = 2
    failing: frozenset[int] = frozenset()
    sealed: bool = False
    lost_replies: int = 0
    throttled: int = 0
    timed_out: bool = False
    store: type[MemoryJobs] = MemoryJobs
    tracker: type[JobTracker] = JobTracker


@dataclass
class Stage:
    case: Case
    clock: ManualClock = field(default_factory=ManualClock)
    memory: JobMemory = field(default_factory=JobMemory)

    def __post_init__(self) -> None:
        self.jobs = self.case.store(self.memory, self.clock)
        self.step_functions = SimulatedStepFunctions(self.clock)
        limit = 5.0 if self.case.timed_out else 1e9
        self.token = self.step_functions.open(timeout_seconds=limit)
        self.tasks = [
            ExportTask.of(JOB, f"https://files.example/{n}", f"{n}")
            for n in range(self.case.tasks)
        ]
        self.jobs.save(ExportJob.create(JOB, "export", "user", task_token=self.token, now=1.0))
        self.jobs.add_tasks(JOB, self.tasks)
        self.jobs.update_job_status(JOB, JobStatus.DOWNLOADING)
        if self.case.sealed:
            self.jobs.set_total_tasks(JOB, len(self.tasks))
        self.clock.advance(10.0)
        self.step_functions.throttle(self.case.throttled)
        self.step_functions.lose_replies(self.case.lost_replies)

    def result(self, n: int) -> TaskResult:
        error = JobError("Http404", "not found") if n in self.case.failing else None
        return TaskResult(JOB, self.tasks[n].task_id, error is None, 1, error)

    def play(self, policy: Policy, doom: Doom) -> Baton:
        baton = Baton(policy)
        actors = []
        for index, life in enumerate(self.case.lives):
            jobs = Stepping(self.jobs, baton, doom, index)
            step_functions = Stepping(self.step_functions, baton, doom, index)
            tracker = self.case.tracker(jobs, step_functions, again_after_seconds=20.0)
            actors.append(mortal(lambda life=life, tracker=tracker: life(tracker, self)))
        baton.run(actors)
        return baton

    def recover(self) -> None:
        """The message comes again; whoever has it does the rest. Then a pass, or a few."""
        tracker = self.case.tracker(self.jobs, self.step_functions, again_after_seconds=20.0)
        job = self.jobs.find_by_id(JOB)
        assert job is not None
        if not job.terminal and job.callback.state is CallbackState.NONE:
            if not job.sealed:
                tracker.seal(JOB, len(self.tasks))
            pending = self.jobs.tasks(JOB, status=TaskStatus.PENDING)
            for n, task in enumerate(self.tasks):
                if task in pending:
                    tracker.count(JOB, [self.result(n)])
        reconciler = Reconciler(self.jobs, tracker, clock=self.clock, stall_seconds=None)
        for _ in range(3):
            self.clock.advance(30.0)
            reconciler.tick()

    def check(self, *, somebody_died: bool) -> None:
        job = self.jobs.find_by_id(JOB)
        assert job is not None
        rows = self.jobs.tasks(JOB)
        done = sum(row.status is TaskStatus.COMPLETED for row in rows)
        failed = sum(row.status is TaskStatus.FAILED for row in rows)
        assert (job.state.completed_tasks, job.state.failed_tasks) == (done, failed)
        assert job.terminal
        assert job.sealed
        assert job.state.total_tasks == len(rows)
        assert job.remaining_tasks == len(rows) - done - failed
        assert job.task_token is None
        answers = [one for one in self.step_functions.accepted if one.kind != "heartbeat"]
        assert self.step_functions.state(self.token) is not TokenState.OPEN
        if self.case.timed_out:
            assert not answers
            # Who died while sending leaves a doubt that nobody can clear: it counts as sent.
            assert job.status is JobStatus.FAILED or somebody_died
        else:
            assert len(answers) == 1
            assert (answers[0].kind == "success") == (job.status is JobStatus.COMPLETED)
            assert (job.status is JobStatus.COMPLETED) == (failed == 0)


def counts(*numbers: int) -> Life:
    return lambda tracker, stage: tracker.count(JOB, [stage.result(n) for n in numbers])


def seals(tracker: JobTracker, stage: Stage) -> None:
    tracker.seal(JOB, len(stage.tasks))


def looks(tracker: JobTracker, stage: Stage) -> None:
    tracker.complete(JOB)


def judges(tracker: JobTracker, stage: Stage) -> None:
    """A heartbeat, and what its answer is taken for."""
    job = stage.jobs.find_by_id(JOB)
    assert job is not None
    if job.task_token is None:
        return
    try:
        stage.step_functions.send_task_heartbeat(job.task_token)
    except TokenClosed as closed:
        tracker.token_closed(job, closed.code)
    except CallbackUnclear:
        pass


CASES = {
    "two count while one seals": Case([counts(0), counts(1), seals]),
    "the same results come twice": Case([counts(0, 1), counts(1, 0)], sealed=True),
    "one task fails": Case([counts(0), counts(1)], failing=frozenset({1}), sealed=True),
    "no task at all": Case([seals, looks], tasks=0),
    "two finish it, one reply is lost": Case(
        [counts(0, 1), looks], sealed=True, lost_replies=1
    ),
    "two finish it, one is throttled": Case([counts(0, 1), looks], sealed=True, throttled=1),
    "a heartbeat meets the end": Case([counts(0, 1), judges], sealed=True),
    "a heartbeat meets the end and a lost reply": Case(
        [counts(0, 1), judges], sealed=True, lost_replies=1
    ),
    "it timed out meanwhile": Case([counts(0, 1), judges], sealed=True, timed_out=True),
}


def every_schedule(case: Case, *, preemptions: int = 2, limit: int = 60) -> int:
    """Without a death, then with the death of each actor before each of its calls."""

    def play(policy: Policy, doom: Doom) -> Baton:
        stage = Stage(case)
        baton = stage.play(policy, doom)
        stage.recover()
        stage.check(somebody_died=doom.struck)
        return baton

    played = explore(lambda policy: play(policy, Doom()), preemptions=preemptions, limit=limit)
    for actor in range(len(case.lives)):
        for call in count(1):
            doom = Doom(actor, call)
            play(Scripted([]), doom)
            if not doom.struck:
                break
            played += explore(
                lambda policy, actor=actor, call=call: play(policy, Doom(actor, call)),
                preemptions=1,
                limit=limit // 4,
            )
    return played


@pytest.mark.parametrize("name", CASES)
def test_one_answer_that_is_true_whoever_dies_when(name: str) -> None:
    assert every_schedule(CASES[name]) > 10
