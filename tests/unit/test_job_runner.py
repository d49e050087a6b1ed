"""A job from its message to its answer, in one process and one thread.

The pool does tasks at once; the store is in memory, Step Functions simulated. What
happens when a process dies on the way is in test_export_crashes.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Thread
from time import sleep

import pytest

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event, Events
from holdfast.jobs import events as ev
from holdfast.jobs.dispatcher import TaskDispatcher
from holdfast.jobs.errors import CallbackUnclear, InvalidJob, StoreUnavailable
from holdfast.jobs.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.jobs.pool.pool import Assignment
from holdfast.jobs.request import JobRequest, TaskSpec, tasks_of
from holdfast.jobs.runner import JobRunner
from holdfast.jobs.tracker import JobTracker
from holdfast.testing import ManualClock
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs
from holdfast.testing.stepfunctions import SimulatedStepFunctions, TokenState
from jobs.inline_pool import InlinePool, fail, succeed


@dataclass
class Beats:
    """What the runner tells the orchestrator."""

    beaten: list[TaskToken | None] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def beat_now(self, job: ExportJob) -> None:
        self.beaten.append(job.task_token)

    def forget(self, job_id: str) -> None:
        self.forgotten.append(job_id)


class Stage:
    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.told: list[Event] = []
        events = Events(self.told.append)
        self.jobs = MemoryJobs(JobMemory(), self.clock)
        self.step_functions = SimulatedStepFunctions(self.clock)
        self.tracker = JobTracker(self.jobs, self.step_functions, events=events)
        self.dispatcher = TaskDispatcher(self.jobs, self.tracker, payload, clock=self.clock)
        self.pool = InlinePool(self.dispatcher)
        self.beats = Beats()
        self.listed: list[TaskSpec] = []
        self.runner = JobRunner(
            self.jobs,
            self.tracker,
            self.dispatcher,
            self.beats,
            lambda request: iter(self.listed),
            self.step_functions,
            events=events,
            clock=self.clock,
        )

    def run(self, request: JobRequest) -> ExportJob:
        return self.runner.run(request, lost=Flag())

    def answers(self) -> list[str]:
        return [one.kind for one in self.step_functions.accepted if one.kind != "heartbeat"]


def payload(task: ExportTask) -> dict[str, object]:
    return {"url": task.url, "s3Key": task.key}


def asked(*urls: str, token: TaskToken | None = None, job_id: str = "abc-123") -> JobRequest:
    specs = tuple(TaskSpec(url=url) for url in urls)
    return JobRequest(job_id, "export-456", "user-789", token, specs)


A, B, C = (f"https://files.example/{name}" for name in "abc")


@pytest.fixture
def stage() -> Iterator[Stage]:
    return Stage()


def test_a_job_is_stored_worked_on_answered_and_forgotten(stage: Stage) -> None:
    """R004-014, 023, 081…087, 098, 105: PROCESSING first, a beat before anything else."""
    token = stage.step_functions.open()
    job = stage.run(asked(A, B, token=token))
    assert job.status is JobStatus.COMPLETED
    assert (job.export_id, job.user_id) == ("export-456", "user-789")
    assert job.state.completed_tasks == job.state.total_tasks == 2
    assert stage.beats.beaten == [token]
    assert stage.beats.forgotten == ["abc-123"]
    assert stage.answers() == ["success"]
    assert [task.payload["s3Key"] for task in stage.pool.taken] != []


def test_a_token_is_beaten_before_the_job_is_even_stored(stage: Stage) -> None:
    """JB-19, D-08."""
    token = stage.step_functions.open()

    def refuse(job: ExportJob) -> None:
        raise StoreUnavailable("not now")

    stage.jobs.save = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        stage.run(asked(A, token=token))
    assert stage.beats.beaten == [token]


def test_the_list_is_looked_up_when_the_message_has_none(stage: Stage) -> None:
    stage.listed = [TaskSpec(url=A), TaskSpec(url=B, key="b.bin")]
    job = stage.run(JobRequest("abc-123", "export-456", "user-789"))
    assert job.state.completed_tasks == 2


def test_a_list_that_cannot_be_used_fails_the_job_and_says_so(stage: Stage) -> None:
    """JB-39."""
    token = stage.step_functions.open()
    request = JobRequest(
        "abc-123", "e", "u", token, (TaskSpec(url=A, key="x"), TaskSpec(url=B, key="x"))
    )
    job = stage.run(request)
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "InvalidJob"
    assert "two files want the name 'x'" in job.error.message
    assert stage.answers() == ["failure"]


def test_a_job_of_no_files_is_complete(stage: Stage) -> None:
    assert stage.run(asked()).status is JobStatus.COMPLETED


def test_a_file_that_is_listed_twice_is_one_task(stage: Stage) -> None:
    assert stage.run(asked(A, A, B)).state.total_tasks == 2


def test_two_files_of_one_name_are_told_apart(stage: Stage) -> None:
    stage.run(asked("https://one.example/x.pdf", "https://two.example/x.pdf"))
    keys = {task.payload["s3Key"] for task in stage.pool.taken}
    assert len(keys) == 2
    assert "x.pdf" in keys


def test_the_same_message_again_repeats_the_answer_and_does_nothing(stage: Stage) -> None:
    """JB-14: a duplicate with the same token finds it closed, which is fine."""
    token = stage.step_functions.open()
    stage.run(asked(A, token=token))
    job = stage.run(asked(A, token=token))
    assert job.status is JobStatus.COMPLETED
    assert len(stage.pool.taken) == 1
    assert stage.answers() == ["success"]


@pytest.mark.parametrize("failing", [False, True])
def test_another_execution_of_a_finished_job_gets_its_outcome(
    stage: Stage, failing: bool
) -> None:
    """JB-14."""
    if failing:
        stage.pool.do = fail
    stage.run(asked(A, token=stage.step_functions.open()))
    second = stage.step_functions.open()
    stage.run(asked(A, token=second))
    assert len(stage.pool.taken) == 1
    assert stage.answers() == ["failure" if failing else "success"] * 2
    assert stage.step_functions.state(second) is TokenState.CLOSED


def test_an_answer_that_cannot_be_repeated_now_is_asked_for_again(stage: Stage) -> None:
    stage.run(asked(A))
    stage.step_functions.down = True
    with pytest.raises(CallbackUnclear):
        stage.run(asked(A, token=stage.step_functions.open()))


def test_another_execution_takes_a_running_job_over(stage: Stage) -> None:
    """JB-14: the first one is told, and the counters stay."""
    first, second = stage.step_functions.open(), stage.step_functions.open()
    begun(stage, asked(A, B, token=first), counted=1)
    job = stage.run(asked(A, B, token=second))
    assert job.status is JobStatus.COMPLETED
    assert job.state.completed_tasks == 2
    assert len(stage.pool.taken) == 1
    answers = [one for one in stage.step_functions.accepted if one.kind != "heartbeat"]
    kinds = [(one.kind, one.token, one.error) for one in answers]
    assert kinds == [("failure", first, "Superseded"), ("success", second, "")]


def test_an_old_message_does_not_take_the_job_back(stage: Stage) -> None:
    """Its execution was superseded; its holder died, so it comes again."""
    first, second = stage.step_functions.open(), stage.step_functions.open()
    begun(stage, asked(A, B, token=first), counted=1)
    stage.jobs.attach_token("abc-123", second)
    stage.step_functions.send_task_failure(first, "Superseded", "")
    job = stage.run(asked(A, B, token=first))
    assert job.status is JobStatus.COMPLETED
    assert stage.step_functions.state(second) is TokenState.CLOSED
    assert stage.answers() == ["failure", "success"]


def test_an_execution_that_is_over_takes_nothing_over(stage: Stage) -> None:
    """Its message arrived late; the one that waits keeps the job."""
    first, over = stage.step_functions.open(), stage.step_functions.open()
    stage.step_functions.send_task_failure(over, "Aborted", "by somebody")
    begun(stage, asked(A, B, token=first), counted=1)
    stage.run(asked(A, B, token=over))
    answers = [(one.kind, one.token) for one in stage.step_functions.accepted]
    assert answers == [("failure", over), ("success", first)]


def test_who_lost_the_job_is_told_by_its_own_message_if_nobody_did(stage: Stage) -> None:
    """Somebody died between taking the job over and telling the old token."""
    first, second = stage.step_functions.open(), stage.step_functions.open()
    begun(stage, asked(A, B, token=first), counted=1)
    stage.jobs.attach_token("abc-123", second)
    stage.run(asked(A, B, token=first))
    told = [one for one in stage.step_functions.accepted if one.kind != "heartbeat"]
    assert [(one.token, one.error) for one in told] == [(first, "Superseded"), (second, "")]


def test_an_old_token_is_told_after_the_row_has_let_go_of_it(stage: Stage) -> None:
    """A heartbeat in between would find the row's own token closed, and fail the job."""
    first, second = stage.step_functions.open(), stage.step_functions.open()
    begun(stage, asked(A, B, token=first), counted=1)
    tell = stage.step_functions.send_task_failure
    rows: list[TaskToken | None] = []

    def look(token: TaskToken, error: str, cause: str) -> None:
        job = stage.jobs.find_by_id("abc-123")
        assert job is not None
        rows.append(job.task_token)
        tell(token, error, cause)

    stage.step_functions.send_task_failure = look  # type: ignore[method-assign]
    stage.run(asked(A, B, token=second))
    assert rows == [second]


def test_another_execution_has_the_job_before_its_message_has_its_turn(stage: Stage) -> None:
    """While the first message's run goes on here, it is the new token that is beaten."""
    first, second = stage.step_functions.open(), stage.step_functions.open()
    gate, began = Flag(), Flag()

    def slow(task: Assignment) -> TaskResult:
        began.set()
        assert gate.wait(30)
        return succeed(task)

    stage.pool.do = slow
    runs = [
        Thread(target=stage.run, args=(asked(A, token=token),)) for token in (first, second)
    ]
    runs[0].start()
    assert began.wait(30)
    runs[1].start()
    wait_for(lambda: stage.step_functions.state(first) is TokenState.CLOSED)
    job = stage.jobs.find_by_id("abc-123")
    assert job is not None
    assert job.task_token == second
    gate.set()
    for run in runs:
        run.join(30)
    assert stage.answers() == ["failure", "success"]


def begun(stage: Stage, request: JobRequest, counted: int, *, sealed: bool = True) -> None:
    """Somebody came so far, then died."""
    assert request.tasks is not None
    tasks = list(tasks_of(request.job_id, request.tasks))
    stage.jobs.save(request.job(stage.clock.time()))
    stage.jobs.add_tasks(request.job_id, tasks)
    stage.jobs.update_job_status(request.job_id, JobStatus.DOWNLOADING)
    if sealed:
        stage.jobs.set_total_tasks(request.job_id, len(tasks))
    results = [TaskResult(request.job_id, task.task_id, True) for task in tasks[:counted]]
    stage.jobs.record_results(request.job_id, results)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("counted", [0, 1, 2, 3])
def test_a_job_goes_on_where_somebody_died(stage: Stage, counted: int, sealed: bool) -> None:
    """JB-06, JB-15, JB-16: what is counted is not done again."""
    request = asked(A, B, C, token=stage.step_functions.open())
    begun(stage, request, counted, sealed=sealed)
    job = stage.run(request)
    assert job.status is JobStatus.COMPLETED
    assert job.state.completed_tasks == job.state.total_tasks == 3
    assert len(stage.pool.taken) == 3 - counted
    assert stage.answers() == ["success"]
    assert [type(event) for event in stage.told].count(ev.JobResumed) == 1


def test_tasks_of_an_older_list_are_part_of_the_job_too(stage: Stage) -> None:
    """Somebody stored tasks and died; the list changed before it was sealed."""
    begun(stage, asked(A, B), 0, sealed=False)
    job = stage.run(asked(B, C))
    assert job.state.completed_tasks == job.state.total_tasks == 3


def test_a_job_that_waited_for_somebody_is_not_taken_for_stalled(stage: Stage) -> None:
    request = asked(A)
    begun(stage, request, 0)
    stage.clock.advance(10_000)
    stage.pool.do = lambda task: None
    stop = Flag()
    run = Thread(target=stage.runner.run, args=(request,), kwargs={"lost": stop})
    run.start()
    try:
        wait_for(lambda: bool(stage.pool.taken))
        job = stage.jobs.find_by_id("abc-123")
        assert job is not None
        assert job.last_progress_at == stage.clock.time()
    finally:
        stop.set()
        run.join()


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        sleep(0.01)
    raise AssertionError("it never happened")


def test_a_lost_lease_ends_the_work_at_once(stage: Stage) -> None:
    stage.pool.do = lambda task: None
    lost = Flag()
    lost.set()
    job = stage.runner.run(asked(A), lost=lost)
    assert not job.terminal


def test_what_runs_is_stopped_when_the_lease_is_lost(stage: Stage) -> None:
    lost = Flag()

    def never(task: Assignment) -> None:
        lost.set()

    stage.pool.do = never
    job = stage.runner.run(asked(A), lost=lost)
    assert not job.terminal
    assert stage.pool.cancelled == ["abc-123"]
    assert stage.dispatcher.running == []


def test_a_message_that_comes_twice_at_once_waits_for_its_turn(stage: Stage) -> None:
    """The second one finds the job done, and repeats the answer to nobody."""
    gate, began = Flag(), Flag()

    def slow(task: Assignment) -> object:
        began.set()
        assert gate.wait(30)
        return succeed(task)

    stage.pool.do = slow  # type: ignore[assignment]
    jobs: list[ExportJob] = []
    runs = [Thread(target=lambda: jobs.append(stage.run(asked(A)))) for _ in range(2)]
    runs[0].start()
    assert began.wait(30)
    runs[1].start()
    gate.set()
    for run in runs:
        run.join(30)
    assert [job.status for job in jobs] == [JobStatus.COMPLETED] * 2
    assert len(stage.pool.taken) == 1


def test_an_answer_is_sent_again_until_it_is_taken() -> None:
    """JB-08: the message is held until then."""
    stage = Stage(SYSTEM_CLOCK)
    stage.step_functions.throttle(2)
    job = stage.run(asked(A, token=stage.step_functions.open()))
    assert job.status is JobStatus.COMPLETED
    assert stage.answers() == ["success"]


def test_a_token_is_refused_where_nobody_can_answer_it(stage: Stage) -> None:
    runner = JobRunner(
        stage.jobs, stage.tracker, stage.dispatcher, stage.beats, lambda request: iter(())
    )
    with pytest.raises(InvalidJob, match="Step Functions is not configured"):
        runner.run(asked(A, token=TaskToken("t")), lost=Flag())


def test_a_job_that_is_cancelled_while_it_runs_ends_as_the_store_says(stage: Stage) -> None:
    """JB-13."""

    def gone(task: Assignment) -> None:
        stage.tracker.fail("abc-123", JobError("TaskTimedOut", "nobody waits"))
        stage.dispatcher.cancel("abc-123")

    stage.pool.do = gone
    job = stage.run(asked(A, B))
    assert job.status is JobStatus.FAILED
    assert len(stage.pool.taken) == 1
    assert stage.pool.cancelled != []
