"""The tracker, from the last result to the outcome. Races are in test_job_schedules.py."""

from collections.abc import Iterator

import pytest

from contracts.jobs.support import BROKEN, make_failure, make_success
from holdfast.exports import events as ev
from holdfast.exports.errors import JobNotFound
from holdfast.exports.model import (
    CallbackState,
    JobError,
    JobStatus,
    TaskToken,
)
from holdfast.exports.tracker import JobTracker
from support.exports.simulated_step_functions import TokenState
from support.exports.stage import JOB, JobStage


@pytest.fixture
def stage() -> Iterator[JobStage]:
    stage = JobStage()
    yield stage
    # R004-168: no event contains a token.
    assert "simulated-task" not in repr(stage.events)


@pytest.mark.requirement(
    "R004-107", "R004-110", "R004-117", "R004-120", "R004-123", "R004-125", "R004-215"
)
def test_the_last_success_completes_the_job_and_says_how_much(stage: JobStage) -> None:
    """Count, check, first success with the seed's output."""
    token = stage.step_functions.open()
    first, second = stage.begin(2, token=token)
    stage.tracker.seal(JOB, 2)
    assert stage.tracker.count(JOB, [make_success(first)]).status is JobStatus.DOWNLOADING
    job = stage.tracker.count(JOB, [make_success(second)])
    assert job.status is JobStatus.COMPLETED
    assert job.completed_at == stage.clock.time()
    (callback,) = stage.step_functions.accepted
    assert callback.kind == "success"
    assert callback.output == {
        "jobId": JOB,
        "status": "COMPLETED",
        "totalTasks": 2,
        "completedTasks": 2,
    }
    assert job.task_token is None
    assert stage.list_events(ev.TaskCompleted) == [
        ev.TaskCompleted(JOB, first.task_id, 7),
        ev.TaskCompleted(JOB, second.task_id, 7),
    ]
    assert stage.list_events(ev.JobFinished) == [ev.JobFinished(JOB, "COMPLETED", 2, 0, None)]


@pytest.mark.requirement("R004-111", "R004-112", "R004-118", "R004-121", "R004-122", "R004-124")
def test_a_failed_task_fails_the_job_and_says_how_many(stage: JobStage) -> None:
    token = stage.step_functions.open()
    first, second = stage.begin(2, token=token)
    stage.tracker.seal(JOB, 2)
    job = stage.tracker.count(JOB, [make_failure(first), make_success(second)])
    assert job.status is JobStatus.FAILED
    assert job.error == JobError("JobCompletedWithFailures", "1 tasks failed")
    (callback,) = stage.step_functions.accepted
    assert (callback.error, callback.cause) == ("JobCompletedWithFailures", "1 tasks failed")
    assert stage.list_events(ev.TaskFailed) == [ev.TaskFailed(JOB, first.task_id, BROKEN.code)]


@pytest.mark.requirement("R004-119", "R004-124")
def test_a_job_without_token_is_settled_without_a_callback(stage: JobStage) -> None:
    result = stage.begin_sealed()
    assert stage.tracker.count(JOB, [result]).status is JobStatus.COMPLETED
    assert stage.step_functions.calls == 0


def test_results_of_a_closed_job_are_dropped(stage: JobStage) -> None:
    (task,) = stage.begin(1)
    stage.tracker.fail(JOB, JobError("Why", "not"))
    assert stage.tracker.count(JOB, [make_success(task)]).state.completed_tasks == 0
    assert not stage.list_events(ev.TaskCompleted)


def test_results_of_an_unknown_job_say_so(stage: JobStage) -> None:
    with pytest.raises(JobNotFound):
        stage.tracker.count(JOB, [])


@pytest.mark.requirement("R004-113", "R004-114")
def test_a_duplicate_result_still_checks_whether_the_job_is_done(stage: JobStage) -> None:
    """The process that counted it may have crashed before it checked (JB-06)."""
    (task,) = stage.begin(1)
    stage.jobs.record_results(JOB, [make_success(task)])
    stage.jobs.set_total_tasks(JOB, 1)
    assert stage.tracker.count(JOB, [make_success(task)]).status is JobStatus.COMPLETED


def test_a_callback_that_gets_no_response_stays_in_the_outbox(stage: JobStage) -> None:
    """(JB-08)"""
    result = stage.begin_sealed(token=stage.step_functions.open())
    stage.step_functions.down = True
    job = stage.tracker.count(JOB, [result])
    assert job.callback.state is CallbackState.PENDING
    assert job.status is JobStatus.DOWNLOADING
    assert len(stage.list_events(ev.CallbackFailed)) == 1
    stage.step_functions.down = False
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED


def test_a_lost_response_counts_as_sent_if_the_token_is_closed_afterwards(
    stage: JobStage,
) -> None:
    """Our own first attempt closed the token (JB-09)."""
    result = stage.begin_sealed(token=stage.step_functions.open())
    stage.step_functions.lose_replies(1)
    stage.tracker.count(JOB, [result])
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED
    assert len(stage.step_functions.accepted) == 1
    assert not stage.list_events(ev.StepFunctionsTimedOut)


def test_a_refusal_does_not_settle_the_doubt_of_an_earlier_attempt(stage: JobStage) -> None:
    """The first attempt closed the token, whatever happened to the second."""
    result = stage.begin_sealed(token=stage.step_functions.open())
    stage.step_functions.lose_replies(1)
    stage.step_functions.throttle(1)
    stage.tracker.count(JOB, [result])
    stage.tracker.complete(JOB)
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED
    assert not stage.list_events(ev.StepFunctionsTimedOut)


@pytest.mark.requirement("R004-253")
def test_a_token_that_is_closed_at_the_first_attempt_timed_out(stage: JobStage) -> None:
    """(JB-09)."""
    result = stage.begin_sealed(token=stage.step_functions.open(timeout_seconds=60))
    stage.clock.advance(61)
    assert not stage.tracker.count(JOB, [result]).terminal
    job = stage.tracker.complete(JOB)  # a second refusal confirms the first
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "TaskTimedOut"
    assert len(stage.list_events(ev.StepFunctionsTimedOut)) == 1


def test_a_single_refusal_of_the_outcome_fails_no_job(stage: JobStage) -> None:
    result = stage.begin_sealed(token=stage.step_functions.open())
    stage.step_functions.deny(1)
    stage.tracker.count(JOB, [result])
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED
    assert not stage.list_events(ev.StepFunctionsTimedOut)


def test_a_refused_callback_is_not_in_doubt(stage: JobStage) -> None:
    """A throttled call was not acted on, so a token that is closed later timed out."""
    result = stage.begin_sealed(token=stage.step_functions.open(timeout_seconds=60))
    stage.step_functions.throttle(1)
    stage.tracker.count(JOB, [result])
    stage.clock.advance(61)
    assert stage.tracker.complete(JOB).status is JobStatus.FAILED


def test_a_failed_job_keeps_its_reason_if_its_token_is_closed(stage: JobStage) -> None:
    token = stage.step_functions.open(timeout_seconds=60)
    stage.begin(1, token=token)
    stage.clock.advance(61)
    stage.tracker.fail(JOB, JobError("JobStalled", "nothing moves"))
    job = stage.tracker.complete(JOB)
    assert job.error == JobError("JobStalled", "nothing moves")


# -- a closed token


@pytest.mark.requirement("R004-154", "R004-253", "R004-256")
def test_a_closed_token_ends_a_job_that_was_being_worked_on(stage: JobStage) -> None:
    """A closed token never completes a job (JB-13). Its state's Retry had its chance."""
    stage.begin(2, token=TaskToken("gone"))
    job = stage.tracker.token_closed(stage.read_job(), "TaskTimedOut")
    assert job.status is JobStatus.DOWNLOADING
    stage.clock.advance(59)
    assert not stage.tracker.fail_closed(job, 60.0).terminal
    stage.clock.advance(1)
    job = stage.tracker.fail_closed(job, 60.0)
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "TaskTimedOut"
    assert len(stage.list_events(ev.StepFunctionsTimedOut)) == 1
    assert not stage.step_functions.accepted


@pytest.mark.requirement("R004-153", "R004-254", "R004-256")
@pytest.mark.parametrize("code", ["TaskDoesNotExist", "InvalidToken"])
def test_an_unknown_token_fails_the_job_with_another_code(stage: JobStage, code: str) -> None:
    stage.begin(2, token=TaskToken("foreign"))
    job = stage.tracker.token_closed(stage.read_job(), code)
    assert job.error is not None
    assert job.error.code == "TaskTokenInvalid"


@pytest.mark.requirement("R004-153", "R004-253", "R004-255", "R004-256")
def test_a_closed_token_of_a_job_that_ended_changes_nothing(stage: JobStage) -> None:
    """A heartbeat raced with the success (JB-46)."""
    token = stage.step_functions.open()
    (task,) = stage.begin(1, token=token)
    old = stage.read_job()
    stage.tracker.seal(JOB, 1)
    stage.tracker.count(JOB, [make_success(task)])
    assert stage.tracker.token_closed(old, "TaskTimedOut").status is JobStatus.COMPLETED
    assert not stage.list_events(ev.StepFunctionsTimedOut)


def test_a_closed_token_of_a_job_with_a_pending_callback_changes_nothing(
    stage: JobStage,
) -> None:
    """(JB-07, JB-46)"""
    result = stage.begin_sealed(token=stage.step_functions.open())
    stage.step_functions.lose_replies(1)
    stage.tracker.count(JOB, [result])
    job = stage.tracker.token_closed(stage.read_job(), "TaskTimedOut")
    assert job.callback.state is CallbackState.PENDING
    assert not stage.list_events(ev.StepFunctionsTimedOut)


@pytest.mark.requirement("R004-253")
def test_a_closed_token_that_was_replaced_changes_nothing(stage: JobStage) -> None:
    """(JB-14)"""
    stage.begin(1, token=TaskToken("old"))
    old = stage.read_job()
    stage.jobs.attach_token(JOB, stage.step_functions.open())
    assert stage.tracker.token_closed(old, "TaskTimedOut").status is JobStatus.DOWNLOADING
    assert not stage.list_events(ev.StepFunctionsTimedOut)


def test_a_job_taken_over_while_it_is_failed_goes_on_with_its_new_token(
    stage: JobStage,
) -> None:
    """The reconciler listed it before, with the old token."""
    stage.begin(1, token=TaskToken("old"))
    listed = stage.tracker.token_closed(stage.read_job(), "TaskTimedOut")
    new = stage.step_functions.open()
    stage.jobs.attach_token(JOB, new)
    stage.clock.advance(60)
    assert stage.tracker.fail_closed(listed, 60.0).status is JobStatus.DOWNLOADING
    assert stage.step_functions.state(new) is TokenState.OPEN


def test_a_finished_job_whose_token_is_closed_reports_to_the_next_one(stage: JobStage) -> None:
    """All files were done while no execution waited. A new one gets the success."""
    result = stage.begin_sealed(token=TaskToken("gone"))
    stage.tracker.token_closed(stage.read_job(), "TaskTimedOut")
    assert stage.tracker.count(JOB, [result]).status is JobStatus.FAILED
    stage.jobs.attach_token(JOB, stage.step_functions.open())
    job = stage.tracker.complete(JOB)
    assert (job.status, job.state.completed_tasks, job.error) == (JobStatus.COMPLETED, 1, None)
    [sent] = stage.step_functions.accepted
    assert sent.kind == "success"
    assert len(stage.list_events(ev.StepFunctionsTimedOut)) == 1


# -- stalled


@pytest.mark.requirement("R004-023")
def test_a_stalled_job_is_failed_and_its_token_notified(stage: JobStage) -> None:
    """(JB-17)"""
    token = stage.step_functions.open()
    stage.begin(1, token=token)
    stage.clock.advance(5000)
    job = stage.tracker.fail_stalled(stage.read_job(), 5000)
    assert job.status is JobStatus.FAILED
    (callback,) = stage.step_functions.accepted
    assert callback.error == "JobStalled"


def test_a_job_that_moved_since_it_was_listed_is_left_alone(stage: JobStage) -> None:
    """A listing may be old (JB-25)."""
    stage.begin(1)
    old = stage.read_job()
    stage.clock.advance(5000)
    stage.jobs.note_progress(JOB)
    assert stage.tracker.fail_stalled(old, 5000).status is JobStatus.DOWNLOADING


def test_a_token_is_left_to_other_hosts_without_step_functions(stage: JobStage) -> None:
    (task,) = stage.begin(1, token=stage.step_functions.open())
    tracker = JobTracker(stage.jobs, None)
    tracker.seal(JOB, 1)
    assert tracker.count(JOB, [make_success(task)]).callback.state is CallbackState.PENDING
    assert stage.tracker.complete(JOB).status is JobStatus.COMPLETED
