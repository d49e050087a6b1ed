"""The number of tasks is set once, before or after the first results."""

import pytest

from contracts.jobs.support import (
    GIVEN_UP,
    assert_counters_match_rows,
    make_success,
    new_job,
    read_job,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import AlreadySealed, JobClosed
from holdfast.exports.model import JobStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock


class SealPromises:
    """The promises about the number of tasks (JB-03, JB-04, JB-05)."""

    @pytest.mark.requirement("R004-056", "R004-060", "R004-192")
    def test_the_seal_says_how_many_tasks_there_are(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock, 3)
        assert not read_job(repository).sealed
        clock.advance(1.0)
        repository.set_total_tasks("job", 3)
        job = read_job(repository)
        assert (job.sealed, job.state.total_tasks, job.remaining_tasks) == (True, 3, 3)
        assert job.updated_at == clock.time()

    def test_a_job_may_be_sealed_before_it_begins(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        repository.set_total_tasks("job", 2)
        repository.update_job_status("job", JobStatus.DOWNLOADING)
        assert (read_job(repository).sealed, read_job(repository).remaining_tasks) == (True, 2)

    @pytest.mark.requirement("R004-192")
    def test_the_same_number_again_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, 3)
        repository.record_results("job", [make_success(tasks[0])])
        before = read_job(repository)
        clock.advance(1.0)
        repository.set_total_tasks("job", 3)
        assert read_job(repository) == before

    @pytest.mark.requirement("R004-056")
    @pytest.mark.parametrize("other", [0, 2, 4])
    def test_another_number_is_refused(
        self, repository: JobStateRepository, clock: ManualClock, other: int
    ) -> None:
        start_sealed_job(repository, clock, 3)
        before = read_job(repository)
        with pytest.raises(AlreadySealed):
            repository.set_total_tasks("job", other)
        assert read_job(repository) == before

    def test_a_job_sealed_with_no_tasks_takes_no_other_number(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock, 0)
        repository.set_total_tasks("job", 0)
        job = read_job(repository)
        assert (job.sealed, job.remaining_tasks, job.all_counted) == (True, 0, True)
        with pytest.raises(AlreadySealed):
            repository.set_total_tasks("job", 1)

    @pytest.mark.requirement("R004-115")
    def test_results_may_come_before_the_seal(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 3)
        repository.record_results("job", [make_success(task) for task in tasks])
        assert read_job(repository).remaining_tasks == -3
        assert not read_job(repository).all_counted
        assert repository.claim_outcome("job") is None
        repository.set_total_tasks("job", 3)
        assert read_job(repository).remaining_tasks == 0
        assert read_job(repository).all_counted
        assert_counters_match_rows(repository)

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_job_whose_outcome_is_decided_is_not_sealed(
        self, repository: JobStateRepository, clock: ManualClock, ended: bool
    ) -> None:
        start_job(repository, clock, 3)
        repository.give_up("job", GIVEN_UP)
        if ended:
            repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        before = read_job(repository)
        with pytest.raises(JobClosed):
            repository.set_total_tasks("job", 3)
        assert read_job(repository) == before
