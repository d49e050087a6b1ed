"""One caller decides the outcome of a job."""

import pytest

from contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    decide_job,
    finish_all_tasks,
    make_failure,
    make_success,
    new_job,
    read_job,
    start_job,
    start_sealed_job,
)
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

    def test_a_job_of_no_tasks_is_completed(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_sealed_job(repository, clock, 0)
        job = repository.claim_outcome("job")
        assert job is not None
        assert job.callback.status is JobStatus.COMPLETED

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
