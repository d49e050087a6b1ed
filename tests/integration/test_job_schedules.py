"""Every interleaving of those who count, seal, finish and judge a job, and every death.

The real tracker runs over a store on plain values; each call of a port is a place where
another actor may go on, or where this one is killed. Afterwards somebody comes, as the
job's message does, does what the store says is not done, and the reconciler passes.

JB-01…09, 12, 13, 46; I-JB-1…5.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import pytest

from fs.schedule import Baton, Policy, Scripted, explore
from holdfast.jobs.dispatcher import TaskDispatcher
from holdfast.jobs.errors import CallbackRefused, CallbackUnclear, TokenClosed
from holdfast.jobs.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.jobs.pool.pool import Assignment
from holdfast.jobs.reconciler import Reconciler
from holdfast.jobs.request import JobRequest, TaskSpec
from holdfast.jobs.runner import JobRunner
from holdfast.jobs.tracker import JobTracker
from holdfast.testing import ManualClock
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs
from holdfast.testing.stepfunctions import AcceptedCallback, SimulatedStepFunctions, TokenState
from jobs.inline_pool import InlinePool
from jobs.stepping import Doom, Stepping, mortal

JOB = "job-1"


@dataclass
class Actor:
    """One process: its ports, each call of which is a step."""

    stage: "Stage"
    jobs: Any
    step_functions: Any
    tracker: JobTracker

    def run(self, token: TaskToken) -> None:
        """Get a job message, and do all of it."""
        clock = Impatient()
        dispatcher = TaskDispatcher(
            self.jobs,
            self.tracker,
            lambda task: {"key": task.key},
            pause_seconds=0.0,
            clock=clock,
        )
        InlinePool(dispatcher, self.stage.do)
        runner = JobRunner(
            self.jobs,
            self.tracker,
            dispatcher,
            Silent(),
            lambda request: iter(()),
            self.step_functions,
            clock=clock,
        )
        specs = tuple(TaskSpec(url=task.url, key=task.key) for task in self.stage.tasks)
        request = JobRequest(JOB, "export", "user", token, specs)
        with suppress(CallbackUnclear, CallbackRefused):  # the message comes again
            runner.run(request, lost=Event())


class Impatient(ManualClock):
    """Who would have to wait loses its lease instead: its message comes again."""

    def wait(self, event: Event, seconds: float | None) -> bool:
        event.set()
        return True


class Silent:
    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


Life = Callable[[Actor], object]


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
    second: bool = False
    """Another execution asks for the job, too."""


@dataclass
class Stage:
    case: Case
    clock: ManualClock = field(default_factory=ManualClock)
    memory: JobMemory = field(default_factory=JobMemory)

    def __post_init__(self) -> None:
        self.jobs = MemoryJobs(self.memory, self.clock)
        self.step_functions = SimulatedStepFunctions(self.clock)
        limit = 5.0 if self.case.timed_out else 1e9
        self.token = self.step_functions.open(timeout_seconds=limit)
        self.second = self.step_functions.open()
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

    def do(self, task: Assignment) -> TaskResult:
        return self.result(int(task.payload["key"]))

    def play(self, policy: Policy, doom: Doom) -> Baton:
        baton = Baton(policy)
        actors = []
        for index, life in enumerate(self.case.lives):
            jobs = Stepping(self.jobs, baton, doom, index)
            step_functions = Stepping(self.step_functions, baton, doom, index)
            tracker = JobTracker(jobs, step_functions, again_after_seconds=20.0)
            actor = Actor(self, jobs, step_functions, tracker)
            actors.append(mortal(partial(life, actor)))
        baton.run(actors)
        return baton

    def recover(self) -> None:
        """The message comes again; whoever has it does the rest. Then a pass, or a few."""
        tracker = JobTracker(self.jobs, self.step_functions, again_after_seconds=20.0)
        if self.case.second:
            self.clock.advance(30.0)
            actor = Actor(self, self.jobs, self.step_functions, tracker)
            for token in (self.token, self.second, self.token):
                actor.run(token)
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
        assert self.step_functions.state(self.token) is not TokenState.OPEN
        if self.case.timed_out:
            assert not self._answers(self.token)
            # Who died while sending leaves a doubt that nobody can clear: it counts as sent.
            assert job.status is JobStatus.FAILED or somebody_died
            return
        assert (job.status is JobStatus.COMPLETED) == (failed == 0)
        for token in (self.token, self.second) if self.case.second else (self.token,):
            (answer,) = self._answers(token)
            assert answer.error == "Superseded" or (answer.kind == "success") == (failed == 0)

    def _answers(self, token: TaskToken) -> list[AcceptedCallback]:
        found = [one for one in self.step_functions.accepted if one.token == token]
        return [one for one in found if one.kind != "heartbeat"]


def counts(*numbers: int) -> Life:
    return lambda actor: actor.tracker.count(JOB, [actor.stage.result(n) for n in numbers])


def seals(actor: Actor) -> None:
    actor.tracker.seal(JOB, len(actor.stage.tasks))


def looks(actor: Actor) -> None:
    actor.tracker.complete(JOB)


def judges(actor: Actor) -> None:
    """A heartbeat, and what its answer is taken for."""
    job = actor.jobs.find_by_id(JOB)
    if job.task_token is None:
        return
    try:
        actor.step_functions.send_task_heartbeat(job.task_token)
    except TokenClosed as closed:
        actor.tracker.token_closed(job, closed.code)
    except CallbackUnclear:
        pass


def first(actor: Actor) -> None:
    actor.run(actor.stage.token)


def second(actor: Actor) -> None:
    actor.run(actor.stage.second)


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
    "another execution takes it over": Case([first, second], sealed=True, second=True),
    "… while it is beaten": Case([second, judges], sealed=True, second=True),
    "… and a reply is lost": Case([second, judges], sealed=True, second=True, lost_replies=1),
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
