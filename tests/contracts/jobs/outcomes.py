"""Promises about the outcome of a job and its callback."""

import pytest

from contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    OpenRepository,
    decide_job,
    finish_all_tasks,
    make_failure,
    make_success,
    new_job,
    read_job,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import IllegalTransition
from holdfast.exports.model import CallbackState, JobError, JobStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock


class OutcomePromises:
    """The promises of `claim_outcome` and `give_up`.

    (JB-02 to JB-06, JB-11).
    """

    @pytest.mark.requirement("R004-116", "R004-118")
    def test_a_job_whose_tasks_all_succeeded_is_completed(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        finish_all_tasks(repository, clock, task_token=TOKEN)
        clock.advance(1.0)
        job = repository.claim_outcome("job")
        assert job is not None
        assert job.callback.state is CallbackState.PENDING
        assert (job.callback.status, job.callback.error) == (JobStatus.COMPLETED, None)
        assert job.callback.attempts == 0
        assert (job.callback.in_doubt, job.callback.attempted_at) == (False, None)
        assert job == read_job(repository)
        assert job.updated_at == clock.time()

    @pytest.mark.requirement("R004-122")
    def test_a_decided_job_is_active_until_its_outcome_is_sent(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        job = decide_job(repository, clock)
        assert (job.status, job.task_token, job.completed_at) == (
            JobStatus.DOWNLOADING,
            TOKEN,
            None,
        )

    @pytest.mark.requirement("R004-118")
    @pytest.mark.parametrize("failures", [1, 2])
    def test_a_job_with_failed_tasks_failed(
        self, repository: JobStateRepository, clock: ManualClock, failures: int
    ) -> None:
        tasks = start_sealed_job(repository, clock, 3)
        repository.record_results("job", [make_failure(task) for task in tasks[:failures]])
        repository.record_results("job", [make_success(task) for task in tasks[failures:]])
        job = repository.claim_outcome("job")
        assert job is not None
        assert job.callback.status is JobStatus.FAILED
        assert job.callback.error == JobError(
            "JobCompletedWithFailures", f"{failures} tasks failed"
        )

    @pytest.mark.requirement("R004-116")
    @pytest.mark.parametrize("early", ["processing", "not sealed", "one left"])
    def test_a_claim_before_all_tasks_are_counted_gets_nothing(
        self, repository: JobStateRepository, clock: ManualClock, early: str
    ) -> None:
        if early == "processing":
            repository.save(new_job(clock))
            repository.set_total_tasks("job", 0)
        elif early == "not sealed":
            start_job(repository, clock, 0)
        else:
            tasks = start_sealed_job(repository, clock, 2)
            repository.record_results("job", [make_success(tasks[0])])
        before = read_job(repository)
        assert repository.claim_outcome("job") is None
        assert read_job(repository) == before

    def test_the_outcome_is_claimed_once(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        job = decide_job(repository, clock)
        assert repository.claim_outcome("job") is None
        assert repository.give_up("job", GIVEN_UP) is None
        assert read_job(repository) == job
        repository.settle("job", JobStatus.COMPLETED, None)
        settled = read_job(repository)
        assert repository.claim_outcome("job") is None
        assert repository.give_up("job", GIVEN_UP) is None
        assert read_job(repository) == settled

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_an_active_job_can_be_given_up(
        self, repository: JobStateRepository, clock: ManualClock, status: JobStatus
    ) -> None:
        """(JB-13, JB-39)"""
        repository.save(new_job(clock, task_token=TOKEN))
        repository.update_job_status("job", status)
        clock.advance(1.0)
        job = repository.give_up("job", GIVEN_UP)
        assert job is not None
        assert (job.status, job.task_token) == (status, TOKEN)
        assert job.callback.state is CallbackState.PENDING
        assert (job.callback.status, job.callback.error) == (JobStatus.FAILED, GIVEN_UP)
        assert job == read_job(repository)
        assert job.updated_at == clock.time()

    def test_a_given_up_job_is_not_completed_by_its_last_task(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        finish_all_tasks(repository, clock)
        assert repository.give_up("job", GIVEN_UP)
        assert repository.claim_outcome("job") is None
        assert read_job(repository).callback.error == GIVEN_UP

    def test_a_job_that_ended_cannot_be_given_up(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock)
        repository.update_job_status("job", JobStatus.FAILED)
        before = read_job(repository)
        assert repository.give_up("job", GIVEN_UP) is None
        assert repository.claim_outcome("job") is None
        assert read_job(repository) == before


AGAIN = 30.0


def begin(repository: JobStateRepository) -> bool:
    """Begin an attempt, and return whether it was allowed."""
    return repository.begin_callback("job", again_after_seconds=AGAIN) is not None


class CallbackPromises:
    """The promises about callbacks (JB-07, JB-08, JB-09, JB-35)."""

    def test_an_attempt_is_in_doubt_until_it_ended(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        before = decide_job(repository, clock)
        clock.advance(1.0)
        assert repository.begin_callback("job", again_after_seconds=AGAIN) == before
        callback = read_job(repository).callback
        assert (callback.state, callback.attempts) == (CallbackState.PENDING, 1)
        assert (callback.in_doubt, callback.attempted_at) == (True, clock.time())
        assert read_job(repository).updated_at == clock.time()

    def test_an_attempt_that_never_ended_is_made_again_and_stays_in_doubt(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        decide_job(repository, clock)
        assert begin(repository)
        clock.advance(AGAIN)
        job = repository.begin_callback("job", again_after_seconds=AGAIN)
        assert job is not None
        assert (job.callback.attempts, job.callback.in_doubt) == (1, True)
        callback = read_job(repository).callback
        assert (callback.attempts, callback.attempted_at) == (2, clock.time())

    @pytest.mark.parametrize("in_doubt", [False, True])
    def test_an_attempt_that_failed_is_made_again_at_once(
        self, repository: JobStateRepository, clock: ManualClock, in_doubt: bool
    ) -> None:
        decide_job(repository, clock)
        assert begin(repository)
        clock.advance(1.0)
        repository.end_callback("job", in_doubt=in_doubt)
        callback = read_job(repository).callback
        assert (callback.attempts, callback.attempted_at) == (1, None)
        assert callback.in_doubt is in_doubt
        assert read_job(repository).updated_at == clock.time()
        job = repository.begin_callback("job", again_after_seconds=AGAIN)
        assert job is not None
        assert job.callback.in_doubt is in_doubt
        assert read_job(repository).callback.in_doubt
        assert read_job(repository).callback.attempts == 2

    @pytest.mark.parametrize("state", ["open", "settled"])
    def test_no_attempt_begins_unless_a_callback_is_pending(
        self, repository: JobStateRepository, clock: ManualClock, state: str
    ) -> None:
        if state == "open":
            start_sealed_job(repository, clock, task_token=TOKEN)
        else:
            decide_job(repository, clock)
            repository.settle("job", JobStatus.COMPLETED, None)
        before = read_job(repository)
        clock.advance(AGAIN)
        assert not begin(repository)
        repository.end_callback("job", in_doubt=True)
        assert read_job(repository) == before

    # -- settling

    @pytest.mark.requirement("R004-017", "R004-061", "R004-126")
    @pytest.mark.parametrize(
        ("status", "error"),
        [(JobStatus.COMPLETED, None), (JobStatus.FAILED, JobError("TaskTimedOut", "too late"))],
    )
    def test_settling_ends_the_job_and_deletes_its_token(
        self,
        repository: JobStateRepository,
        clock: ManualClock,
        status: JobStatus,
        error: JobError | None,
    ) -> None:
        decide_job(repository, clock)
        begin(repository)
        clock.advance(1.0)
        assert repository.settle("job", status, error) is True
        job = read_job(repository)
        assert (job.status, job.error) == (status, error)
        assert (job.completed_at, job.updated_at) == (clock.time(), clock.time())
        assert job.callback.state is CallbackState.SENT
        assert not job.callback.in_doubt  # it was, from `begin_callback` on
        assert (job.callback.attempts, job.callback.attempted_at) == (1, None)
        assert not job.has_task_token()
        assert job.ttl is None

    def test_a_given_up_job_is_settled_from_where_it_was(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock, task_token=TOKEN))
        repository.give_up("job", GIVEN_UP)
        assert repository.settle("job", JobStatus.FAILED, GIVEN_UP) is True
        assert read_job(repository).status is JobStatus.FAILED

    def test_one_caller_settles(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        decide_job(repository, clock)
        assert repository.settle("job", JobStatus.COMPLETED, None) is True
        before = read_job(repository)
        clock.advance(1.0)
        assert repository.settle("job", JobStatus.COMPLETED, None) is False
        assert repository.settle("job", JobStatus.FAILED, GIVEN_UP) is False
        assert read_job(repository) == before

    def test_a_job_without_outcome_is_not_settled(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_sealed_job(repository, clock, task_token=TOKEN)
        before = read_job(repository)
        assert repository.settle("job", JobStatus.FAILED, GIVEN_UP) is False
        assert read_job(repository) == before

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_a_job_is_not_settled_with_a_status_that_is_not_terminal(
        self, repository: JobStateRepository, clock: ManualClock, status: JobStatus
    ) -> None:
        decide_job(repository, clock)
        before = read_job(repository)
        with pytest.raises((IllegalTransition, ValueError)):
            repository.settle("job", status, None)
        assert read_job(repository) == before

    @pytest.mark.requirement("R004-065")
    def test_only_finished_jobs_get_a_ttl(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> None:
        """A job that is deleted early would be created again (JB-36)."""
        repository = open_repository(clock, keep_seconds=3600.0)
        assert decide_job(repository, clock).ttl is None
        begin(repository)
        assert read_job(repository).ttl is None
        clock.advance(1.0)
        repository.settle("job", JobStatus.COMPLETED, None)
        assert read_job(repository).ttl == clock.time() + 3600
