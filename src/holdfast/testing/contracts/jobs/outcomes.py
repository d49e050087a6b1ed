"""One caller decides how a job ended."""

import pytest

from holdfast.jobs.model import CallbackState, JobError, JobStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    all_done,
    decided,
    failed,
    job_of,
    new_job,
    sealed,
    started,
    succeeded,
)


class OutcomePromises:
    """R004-115, R004-116, R004-118, R004-121, R004-123; D-14, D-15; JB-02…06, JB-11."""

    def test_a_job_whose_tasks_all_succeeded_is_completed(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        all_done(repository, clock, task_token=TOKEN)
        clock.advance(1.0)
        job = repository.claim_outcome("job")
        assert job is not None
        assert job.callback.state is CallbackState.PENDING
        assert (job.callback.status, job.callback.error) == (JobStatus.COMPLETED, None)
        assert job.callback.attempts == 0
        assert (job.callback.in_doubt, job.callback.attempted_at) == (False, None)
        assert job == job_of(repository)
        assert job.updated_at == clock.time()

    def test_a_decided_job_is_active_until_the_answer_is_out(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        job = decided(repository, clock)
        assert (job.status, job.task_token, job.completed_at) == (
            JobStatus.DOWNLOADING,
            TOKEN,
            None,
        )

    @pytest.mark.parametrize("failures", [1, 2])
    def test_a_job_with_failed_tasks_failed(
        self, repository: JobStateRepository, clock: ManualClock, failures: int
    ) -> None:
        tasks = sealed(repository, clock, 3)
        repository.record_results("job", [failed(task) for task in tasks[:failures]])
        repository.record_results("job", [succeeded(task) for task in tasks[failures:]])
        job = repository.claim_outcome("job")
        assert job is not None
        assert job.callback.status is JobStatus.FAILED
        assert job.callback.error == JobError(
            "JobCompletedWithFailures", f"{failures} tasks failed"
        )

    def test_a_job_of_no_tasks_is_completed(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        sealed(repository, clock, 0)
        job = repository.claim_outcome("job")
        assert job is not None
        assert job.callback.status is JobStatus.COMPLETED

    @pytest.mark.parametrize("early", ["processing", "not sealed", "one left"])
    def test_whoever_comes_too_early_gets_nothing(
        self, repository: JobStateRepository, clock: ManualClock, early: str
    ) -> None:
        if early == "processing":
            repository.save(new_job(clock))
            repository.set_total_tasks("job", 0)
        elif early == "not sealed":
            started(repository, clock, 0)
        else:
            tasks = sealed(repository, clock, 2)
            repository.record_results("job", [succeeded(tasks[0])])
        was = job_of(repository)
        assert repository.claim_outcome("job") is None
        assert job_of(repository) == was

    def test_the_outcome_is_claimed_once(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        job = decided(repository, clock)
        assert repository.claim_outcome("job") is None
        assert repository.give_up("job", GIVEN_UP) is None
        assert job_of(repository) == job
        repository.settle("job", JobStatus.COMPLETED, None)
        settled = job_of(repository)
        assert repository.claim_outcome("job") is None
        assert repository.give_up("job", GIVEN_UP) is None
        assert job_of(repository) == settled

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_an_active_job_can_be_given_up(
        self, repository: JobStateRepository, clock: ManualClock, status: JobStatus
    ) -> None:
        """JB-13, JB-39."""
        repository.save(new_job(clock, task_token=TOKEN))
        repository.update_job_status("job", status)
        clock.advance(1.0)
        job = repository.give_up("job", GIVEN_UP)
        assert job is not None
        assert (job.status, job.task_token) == (status, TOKEN)
        assert job.callback.state is CallbackState.PENDING
        assert (job.callback.status, job.callback.error) == (JobStatus.FAILED, GIVEN_UP)
        assert job == job_of(repository)
        assert job.updated_at == clock.time()

    def test_a_given_up_job_is_not_completed_by_its_last_task(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        all_done(repository, clock)
        assert repository.give_up("job", GIVEN_UP)
        assert repository.claim_outcome("job") is None
        assert job_of(repository).callback.error == GIVEN_UP

    def test_a_job_that_ended_cannot_be_given_up(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        started(repository, clock)
        repository.update_job_status("job", JobStatus.FAILED)
        was = job_of(repository)
        assert repository.give_up("job", GIVEN_UP) is None
        assert repository.claim_outcome("job") is None
        assert job_of(repository) == was
