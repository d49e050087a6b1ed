"""From the last result to the answer, step by step. Races are in test_job_schedules.py."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from holdfast.core.events import Event, Events
from holdfast.jobs import events as ev
from holdfast.jobs.errors import JobNotFound
from holdfast.jobs.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.jobs.tracker import JobTracker
from holdfast.testing import ManualClock
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs
from holdfast.testing.stepfunctions import SimulatedStepFunctions, TokenState

JOB = "abc-123"


@dataclass
class Stage:
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs = MemoryJobs(JobMemory(), self.clock)
        self.step_functions = SimulatedStepFunctions(self.clock)
        self.tracker = JobTracker(
            self.jobs, self.step_functions, events=Events(self.told.append)
        )

    def begin(self, tasks: int, *, token: TaskToken | None = None) -> list[ExportTask]:
        self.jobs.save(
            ExportJob.create(JOB, "export", "user", task_token=token, now=self.clock.time())
        )
        made = [ExportTask.of(JOB, f"https://files.example/{n}", f"{n}") for n in range(tasks)]
        self.jobs.add_tasks(JOB, made)
        self.jobs.update_job_status(JOB, JobStatus.DOWNLOADING)
        return made

    @property
    def job(self) -> ExportJob:
        job = self.jobs.find_by_id(JOB)
        assert job is not None
        return job

    def heard(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    # R004-168, I-JB-13: whatever happened, nobody was told a token.
    assert "simulated-task" not in repr(stage.told)


def done(task: ExportTask, n: int = 7) -> TaskResult:
    return TaskResult(task.job_id, task.task_id, True, n)


def failed(task: ExportTask) -> TaskResult:
    return TaskResult(task.job_id, task.task_id, False, 0, JobError("Http404", "gone"))


def test_the_last_success_completes_the_job_and_says_how_much(stage: Stage) -> None:
    """R004-103, 106…120, 123…126: count, check, one success with the seed's output."""
    token = stage.step_functions.open()
    one, two = stage.begin(2, token=token)
    stage.tracker.seal(JOB, 2)
    assert stage.tracker.count(JOB, [done(one)]).status is JobStatus.DOWNLOADING
    job = stage.tracker.count(JOB, [done(two)])
    assert job.status is JobStatus.COMPLETED
    assert job.completed_at == stage.clock.time()
    (answer,) = stage.step_functions.accepted
    assert answer.kind == "success"
    assert answer.output == {
        "jobId": JOB,
        "status": "COMPLETED",
        "totalTasks": 2,
        "completedTasks": 2,
    }
    assert job.task_token is None
    assert stage.heard(ev.TaskCompleted) == [
        ev.TaskCompleted(JOB, one.task_id, 7),
        ev.TaskCompleted(JOB, two.task_id, 7),
    ]
    assert stage.heard(ev.JobFinished) == [ev.JobFinished(JOB, "COMPLETED", 2, 0, None)]


def test_a_failed_task_fails_the_job_and_says_how_many(stage: Stage) -> None:
    """R004-111, 112, 118, 121; R004-122 by D-14; D-15."""
    token = stage.step_functions.open()
    one, two = stage.begin(2, token=token)
    stage.tracker.seal(JOB, 2)
    job = stage.tracker.count(JOB, [failed(one), done(two)])
    assert job.status is JobStatus.FAILED
    assert job.error == JobError("JobCompletedWithFailures", "1 tasks failed")
    (answer,) = stage.step_functions.accepted
    assert (answer.error, answer.cause) == ("JobCompletedWithFailures", "1 tasks failed")
    assert stage.heard(ev.TaskFailed) == [ev.TaskFailed(JOB, one.task_id, "Http404")]


def test_a_job_without_token_is_settled_and_nobody_is_called(stage: Stage) -> None:
    """R004-119, R004-124."""
    (one,) = stage.begin(1)
    stage.tracker.seal(JOB, 1)
    assert stage.tracker.count(JOB, [done(one)]).status is JobStatus.COMPLETED
    assert stage.step_functions.calls == 0


def test_a_job_of_no_tasks_is_complete_when_it_is_sealed(stage: Stage) -> None:
    """JB-05."""
    token = stage.step_functions.open()
    stage.begin(0, token=token)
    assert stage.tracker.seal(JOB, 0).status is JobStatus.COMPLETED
    assert stage.step_functions.state(token) is TokenState.CLOSED


def test_nothing_is_complete_before_the_seal(stage: Stage) -> None:
    """JB-03, JB-04."""
    (one,) = stage.begin(1)
    assert stage.tracker.count(JOB, [done(one)]).status is JobStatus.DOWNLOADING
    assert stage.tracker.seal(JOB, 1).status is JobStatus.COMPLETED


def test_results_of_a_closed_job_are_dropped(stage: Stage) -> None:
    (one,) = stage.begin(1)
    stage.tracker.fail(JOB, JobError("Why", "not"))
    assert stage.tracker.count(JOB, [done(one)]).state.completed_tasks == 0
    assert not stage.heard(ev.TaskCompleted)


def test_results_of_an_unknown_job_say_so(stage: Stage) -> None:
    with pytest.raises(JobNotFound):
        stage.tracker.count(JOB, [])


def test_a_duplicate_result_still_looks_whether_the_job_is_done(stage: Stage) -> None:
    """JB-06: whoever counted it may have died before looking."""
    (one,) = stage.begin(1)
    stage.jobs.record_results(JOB, [done(one)])
    stage.jobs.set_total_tasks(JOB, 1)
    assert stage.tracker.count(JOB, [done(one)]).status is JobStatus.COMPLETED


def test_a_callback_that_gets_no_answer_stays_in_the_outbox(stage: Stage) -> None:
    """JB-08."""
    token = stage.step_functions.open()
    (one,) = stage.begin(1, token=token)
    stage.tracker.seal(JOB, 1)
    stage.step_functions.down = True
    job = stage.tracker.count(JOB, [done(one)])
    assert job.callback.state is CallbackState.PENDING
    assert job.status is JobStatus.DOWNLOADING
    assert len(stage.heard(ev.CallbackFailed)) == 1
    stage.step_functions.down = False
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED


def test_a_lost_reply_counts_as_told_when_the_token_turns_out_closed(stage: Stage) -> None:
    """JB-09: it was us who closed it."""
    token = stage.step_functions.open()
    (one,) = stage.begin(1, token=token)
    stage.tracker.seal(JOB, 1)
    stage.step_functions.lose_replies(1)
    stage.tracker.count(JOB, [done(one)])
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED
    assert len(stage.step_functions.accepted) == 1
    assert not stage.heard(ev.StepFunctionsTimedOut)


def test_a_token_that_is_closed_at_the_first_word_was_not_closed_by_us(stage: Stage) -> None:
    """JB-09, R004-253."""
    token = stage.step_functions.open(timeout_seconds=60)
    (one,) = stage.begin(1, token=token)
    stage.tracker.seal(JOB, 1)
    stage.clock.advance(61)
    job = stage.tracker.count(JOB, [done(one)])
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "TaskTimedOut"
    assert len(stage.heard(ev.StepFunctionsTimedOut)) == 1


def test_a_refusal_leaves_no_doubt(stage: Stage) -> None:
    """A throttled call was not acted on: what is closed afterwards was closed by others."""
    token = stage.step_functions.open(timeout_seconds=60)
    (one,) = stage.begin(1, token=token)
    stage.tracker.seal(JOB, 1)
    stage.step_functions.throttle(1)
    stage.tracker.count(JOB, [done(one)])
    stage.clock.advance(61)
    assert stage.tracker.complete(JOB).status is JobStatus.FAILED


def test_a_job_that_was_given_up_keeps_its_reason_though_nobody_waits(stage: Stage) -> None:
    token = stage.step_functions.open(timeout_seconds=60)
    stage.begin(1, token=token)
    stage.clock.advance(61)
    job = stage.tracker.fail(JOB, JobError("JobStalled", "nothing moves"))
    assert job.error == JobError("JobStalled", "nothing moves")


# -- what a heartbeat is told


def beaten(stage: Stage) -> ExportJob:
    return stage.job


def test_a_closed_token_ends_a_job_that_was_being_worked_on(stage: Stage) -> None:
    """JB-13, R004-154, R004-256 by D-16: never COMPLETED by hearsay."""
    stage.begin(2, token=TaskToken("gone"))
    job = stage.tracker.token_closed(beaten(stage), "TaskTimedOut")
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "TaskTimedOut"
    assert len(stage.heard(ev.StepFunctionsTimedOut)) == 1
    assert not stage.step_functions.accepted


@pytest.mark.parametrize("code", ["TaskDoesNotExist", "InvalidToken"])
def test_a_token_nobody_knows_ends_it_under_another_name(stage: Stage, code: str) -> None:
    """D-16, D-27, R004-153, R004-254."""
    stage.begin(2, token=TaskToken("foreign"))
    job = stage.tracker.token_closed(beaten(stage), code)
    assert job.error is not None
    assert job.error.code == "TaskTokenInvalid"


def test_a_closed_token_of_a_job_that_ended_is_no_news(stage: Stage) -> None:
    """JB-46, R004-255: a heartbeat that raced with the success."""
    token = stage.step_functions.open()
    (one,) = stage.begin(1, token=token)
    old = beaten(stage)
    stage.tracker.seal(JOB, 1)
    stage.tracker.count(JOB, [done(one)])
    assert stage.tracker.token_closed(old, "TaskTimedOut").status is JobStatus.COMPLETED
    assert not stage.heard(ev.StepFunctionsTimedOut)


def test_a_closed_token_of_a_job_whose_answer_is_under_way_is_no_news(stage: Stage) -> None:
    """JB-07, JB-46."""
    token = stage.step_functions.open()
    (one,) = stage.begin(1, token=token)
    stage.tracker.seal(JOB, 1)
    stage.step_functions.lose_replies(1)
    stage.tracker.count(JOB, [done(one)])
    job = stage.tracker.token_closed(beaten(stage), "TaskTimedOut")
    assert job.callback.state is CallbackState.PENDING
    assert not stage.heard(ev.StepFunctionsTimedOut)


def test_a_closed_token_that_was_replaced_is_no_news(stage: Stage) -> None:
    """JB-14."""
    stage.begin(1, token=TaskToken("old"))
    old = beaten(stage)
    stage.jobs.attach_token(JOB, stage.step_functions.open())
    assert stage.tracker.token_closed(old, "TaskTimedOut").status is JobStatus.DOWNLOADING
    assert not stage.heard(ev.StepFunctionsTimedOut)


def test_a_job_that_is_taken_over_while_it_is_judged_answers_its_new_token(
    stage: Stage,
) -> None:
    """Nobody is left waiting, whatever the judge read."""
    stage.begin(1, token=TaskToken("old"))
    new = stage.step_functions.open()
    give_up = stage.jobs.give_up

    def taken_over_first(job_id: str, error: JobError) -> ExportJob | None:
        stage.jobs.attach_token(job_id, new)
        return give_up(job_id, error)

    stage.jobs.give_up = taken_over_first  # type: ignore[method-assign]
    stage.tracker.token_closed(stage.job, "TaskTimedOut")
    assert stage.step_functions.state(new) is TokenState.CLOSED


# -- stalled


def test_a_job_that_does_not_move_is_failed_and_that_is_told(stage: Stage) -> None:
    """JB-17."""
    token = stage.step_functions.open()
    stage.begin(1, token=token)
    stage.clock.advance(5000)
    job = stage.tracker.stalled(stage.job, 5000)
    assert job.status is JobStatus.FAILED
    (answer,) = stage.step_functions.accepted
    assert answer.error == "JobStalled"


def test_a_job_that_moved_since_it_was_listed_is_left_alone(stage: Stage) -> None:
    """JB-25: a listing may be old."""
    stage.begin(1)
    old = stage.job
    stage.clock.advance(5000)
    stage.jobs.note_progress(JOB)
    assert stage.tracker.stalled(old, 5000).status is JobStatus.DOWNLOADING


def test_a_token_is_left_to_others_where_step_functions_is_not(stage: Stage) -> None:
    (one,) = stage.begin(1, token=stage.step_functions.open())
    here = JobTracker(stage.jobs, None)
    here.seal(JOB, 1)
    assert here.count(JOB, [done(one)]).callback.state is CallbackState.PENDING
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED
