"""Every interleaving of actors that count, seal, finish and check a job, and every crash.

The real tracker runs over a store on plain values. At each call of a port another actor may
go on, or this actor may crash. Afterwards the job's message is delivered again, the tasks
that are not done are done, and the reconciler runs (JB-01 to JB-09, JB-12, JB-13, JB-46).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import pytest

from holdfast.exports.errors import CallbackRefused, CallbackUnclear, TokenClosed
from holdfast.exports.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.exports.pool.worker import Assignment
from holdfast.exports.reconciler import Reconciler
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.exports.tracker import JobTracker
from holdfast.testing import ManualClock
from support.exports.simulated_step_functions import (
    AcceptedCallback,
    SimulatedStepFunctions,
    TokenState,
)
from support.exports.stage import BoundedLease, make_runner
from support.interleaving import Baton, Policy, Scripted, explore

JOB = "job-1"
GRACE_SECONDS = 60.0


class Crashed(BaseException):
    """Simulates the end of the process: no handler of an Exception runs after it."""


class Crash:
    """Ends one actor before its k-th call, while the other actors go on."""

    def __init__(self, actor: int | None = None, call: int = 0) -> None:
        self._actor, self._call = actor, call
        self._calls: dict[int, int] = {}
        self.happened = False

    def before_call(self, actor: int) -> None:
        """Count a call of the actor, and raise Crashed if it is the k-th or a later one.

        So a handler on the way out, which a killed process would not run, changes nothing.
        """
        self._calls[actor] = self._calls.get(actor, 0) + 1
        if actor == self._actor and self._calls[actor] >= self._call:
            self.happened = True
            raise Crashed


class Stepping:
    """Wraps a port. Each call may switch to another actor first, or crash."""

    def __init__(self, port: Any, baton: Baton, crash: Crash, actor: int) -> None:
        self._port, self._baton, self._crash, self._actor = port, baton, crash, actor

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)

        def stepped(*args: Any, **kwargs: Any) -> Any:
            self._baton.step()
            self._crash.before_call(self._actor)
            return call(*args, **kwargs)

        return stepped


def make_actor(run: Callable[[], None]) -> Callable[[], None]:
    """Return an actor that may crash; then the baton goes on to the others."""

    def actor() -> None:
        with suppress(Crashed):
            run()

    return actor


@dataclass
class Actor:
    """One process with its ports; each call of a port is a step."""

    stage: "Stage"
    jobs: Any
    step_functions: Any
    tracker: JobTracker

    def run(self, token: TaskToken) -> None:
        """Receive the job's message with that token, and run the job."""
        runner, _, _ = make_runner(
            self.jobs,
            self.tracker,
            self.step_functions,
            do=self.stage.do,
            pause_seconds=0.0,
            clock=NoWaitClock(),
        )
        specs = tuple(TaskSpec(url=task.url, key=task.key) for task in self.stage.tasks)
        request = JobRequest(JOB, "export", "user", token, specs)
        with suppress(CallbackUnclear, CallbackRefused):  # the message is delivered again
            runner.run(request, lost=BoundedLease())


class NoWaitClock(ManualClock):
    """Sets the event instead of waiting, so that the lease is lost and the message returns."""

    def wait(self, event: Event, seconds: float | None) -> bool:
        event.set()
        return True

    def sleep(self, seconds: float) -> None:
        pass


Script = Callable[[Actor], object]


@dataclass
class Case:
    """A job that was begun, and what the actors do that meet."""

    scripts: Sequence[Script]
    tasks: int = 2
    failing: frozenset[int] = frozenset()
    sealed: bool = False
    lost_replies: int = 0
    throttled: int = 0
    timed_out: bool = False
    second: bool = False
    """Whether another execution requests the job, too."""
    closed: bool = False
    """Whether the first token was noted as closed."""
    fresh: bool = False
    """Whether the job is not stored yet, so that it begins with its message."""


@dataclass
class Stage:
    """A job in a store in memory, and a simulated Step Functions."""

    case: Case
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.jobs = MemoryJobs(clock=self.clock)
        self.step_functions = SimulatedStepFunctions(self.clock)
        limit = 5.0 if self.case.timed_out else 1e9
        self.token = self.step_functions.open(timeout_seconds=limit)
        self.second = self.step_functions.open()
        self.tasks = [
            ExportTask.create(JOB, f"https://files.example/{n}", f"{n}")
            for n in range(self.case.tasks)
        ]
        if self.case.fresh:
            return
        self.jobs.save(ExportJob.create(JOB, "export", "user", task_token=self.token, now=1.0))
        self.jobs.add_tasks(JOB, self.tasks)
        self.jobs.update_job_status(JOB, JobStatus.DOWNLOADING)
        if self.case.sealed:
            self.jobs.set_total_tasks(JOB, len(self.tasks))
        self.clock.advance(10.0)
        if self.case.closed:
            error = JobError("TaskTimedOut", "not any more")
            assert self.jobs.note_token_closed(JOB, self.token, error)
            self.clock.advance(GRACE_SECONDS)
        self.step_functions.throttle(self.case.throttled)
        self.step_functions.lose_replies(self.case.lost_replies)

    def make_result(self, n: int) -> TaskResult:
        """Make the result of the n-th task."""
        error = JobError("Http404", "not found") if n in self.case.failing else None
        return TaskResult(JOB, self.tasks[n].task_id, error is None, 1, error)

    def do(self, task: Assignment) -> TaskResult:
        """Do a task at once."""
        return self.make_result(int(task.payload["s3Key"]))

    def play(self, policy: Policy, crash: Crash) -> Baton:
        """Run all actors in the order of the policy."""
        baton = Baton(policy)
        actors = []
        for index, script in enumerate(self.case.scripts):
            jobs = Stepping(self.jobs, baton, crash, index)
            step_functions = Stepping(self.step_functions, baton, crash, index)
            tracker = JobTracker(jobs, step_functions, again_after_seconds=20.0)
            actor = Actor(self, jobs, step_functions, tracker)
            actors.append(make_actor(partial(script, actor)))
        baton.run(actors)
        return baton

    def recover(self) -> None:
        """Deliver the message again, do the remaining tasks, and run the reconciler."""
        tracker = JobTracker(self.jobs, self.step_functions, again_after_seconds=20.0)
        if self.case.second or self.case.fresh:
            self.clock.advance(30.0)
            actor = Actor(self, self.jobs, self.step_functions, tracker)
            later = (self.second, self.token) if self.case.second else ()
            for token in (self.token, *later):
                actor.run(token)
        job = self.jobs.find_by_id(JOB)
        assert job is not None
        if not job.terminal and job.callback.state is CallbackState.NONE:
            if not job.sealed:
                tracker.seal(JOB, len(self.tasks))
            pending = self.jobs.tasks(JOB, status=TaskStatus.PENDING)
            for n, task in enumerate(self.tasks):
                if task in pending:
                    tracker.count(JOB, [self.make_result(n)])
        reconciler = Reconciler(
            self.jobs,
            tracker,
            clock=self.clock,
            stall_seconds=None,
            retry_grace_seconds=GRACE_SECONDS,
        )
        for _ in range(3):
            self.clock.advance(30.0)
            reconciler.tick()

    def check(self, *, crashed: bool) -> None:
        """Check that counters, status and callbacks agree."""
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
        if self.case.second and self.case.timed_out:
            assert not self._list_outcomes(self.token)
            (outcome,) = self._list_outcomes(self.second)
            assert (outcome.kind, job.status) == ("success", JobStatus.COMPLETED)
            return
        if self.case.timed_out:
            assert not self._list_outcomes(self.token)
            # After a crash while sending it is unknown whether the outcome went out, so it
            # counts as sent.
            assert job.status is JobStatus.FAILED or crashed
            return
        assert (job.status is JobStatus.COMPLETED) == (failed == 0)
        for token in (self.token, self.second) if self.case.second else (self.token,):
            (outcome,) = self._list_outcomes(token)
            assert outcome.error == "Superseded" or (outcome.kind == "success") == (failed == 0)

    def _list_outcomes(self, token: TaskToken) -> list[AcceptedCallback]:
        accepted = [sent for sent in self.step_functions.accepted if sent.token == token]
        return [sent for sent in accepted if sent.kind != "heartbeat"]


def count_results(*numbers: int) -> Script:
    """Return a script that counts the results of these tasks."""
    return lambda actor: actor.tracker.count(JOB, [actor.stage.make_result(n) for n in numbers])


def seal(actor: Actor) -> None:
    """Seal the job."""
    actor.tracker.seal(JOB, len(actor.stage.tasks))


def complete(actor: Actor) -> None:
    """Finish the job if it is done."""
    actor.tracker.complete(JOB)


def send_heartbeat(actor: Actor) -> None:
    """Send a heartbeat, and handle a closed token."""
    job = actor.jobs.find_by_id(JOB)
    if job.task_token is None:
        return
    try:
        actor.step_functions.send_task_heartbeat(job.task_token)
    except TokenClosed as closed:
        actor.tracker.token_closed(job, closed.code)
    except CallbackUnclear:
        pass


def fail_closed(actor: Actor) -> None:
    """Fail the job if its token was closed and no other one came."""
    actor.tracker.fail_closed(actor.jobs.find_by_id(JOB), GRACE_SECONDS)


def run_first(actor: Actor) -> None:
    """Run the job with the first token."""
    actor.run(actor.stage.token)


def run_second(actor: Actor) -> None:
    """Run the job with the token of the second execution."""
    actor.run(actor.stage.second)


CASES = {
    "its message is received by two": Case([run_first, run_first], fresh=True),
    "… and a task fails": Case([run_first], failing=frozenset({1}), fresh=True),
    "… and another execution requests it": Case(
        [run_first, run_second], fresh=True, second=True
    ),
    "two count while one seals": Case([count_results(0), count_results(1), seal]),
    "the same results come twice": Case(
        [count_results(0, 1), count_results(1, 0)], sealed=True
    ),
    "one task fails": Case(
        [count_results(0), count_results(1)], failing=frozenset({1}), sealed=True
    ),
    "no task at all": Case([seal, complete], tasks=0),
    "two finish it, one response is lost": Case(
        [count_results(0, 1), complete], sealed=True, lost_replies=1
    ),
    "two finish it, one is throttled": Case(
        [count_results(0, 1), complete], sealed=True, throttled=1
    ),
    "a heartbeat meets the end": Case([count_results(0, 1), send_heartbeat], sealed=True),
    "a heartbeat meets the end and a lost response": Case(
        [count_results(0, 1), send_heartbeat], sealed=True, lost_replies=1
    ),
    "another execution takes it over": Case([run_first, run_second], sealed=True, second=True),
    "… while a heartbeat is sent": Case([run_second, send_heartbeat], sealed=True, second=True),
    "… and a response is lost": Case(
        [run_second, send_heartbeat], sealed=True, second=True, lost_replies=1
    ),
    "it timed out, and another execution comes when its grace ends": Case(
        [run_second, fail_closed], sealed=True, second=True, timed_out=True, closed=True
    ),
    "… while its last results are counted": Case(
        [run_second, count_results(0, 1), fail_closed],
        sealed=True,
        second=True,
        timed_out=True,
        closed=True,
    ),
    "… and a response is lost then": Case(
        [run_second, fail_closed],
        sealed=True,
        second=True,
        timed_out=True,
        closed=True,
        lost_replies=1,
    ),
    "… and heartbeats find it closed": Case(
        [run_second, send_heartbeat, count_results(0, 1)],
        sealed=True,
        second=True,
        timed_out=True,
    ),
    "it timed out meanwhile": Case(
        [count_results(0, 1), send_heartbeat], sealed=True, timed_out=True
    ),
}


def play_all_schedules(case: Case, *, preemptions: int = 2, limit: int = 60) -> int:
    """Play without a crash, then with a crash of each actor before each of its calls.

    Return the number of schedules.
    """

    def play(policy: Policy, crash: Crash) -> Baton:
        stage = Stage(case)
        baton = stage.play(policy, crash)
        stage.recover()
        stage.check(crashed=crash.happened)
        return baton

    played = explore(lambda policy: play(policy, Crash()), preemptions=preemptions, limit=limit)
    for actor in range(len(case.scripts)):
        for call in count(1):
            crash = Crash(actor, call)
            play(Scripted([]), crash)
            if not crash.happened:
                break
            played += explore(
                lambda policy, actor=actor, call=call: play(policy, Crash(actor, call)),
                preemptions=1,
                limit=limit // 4,
            )
    return played


@pytest.mark.requirement("R004-048", "R004-051")
@pytest.mark.parametrize("name", CASES)
def test_one_correct_outcome_is_sent_in_every_schedule_and_crash(name: str) -> None:
    assert play_all_schedules(CASES[name]) > 10
