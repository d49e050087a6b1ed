"""Jobs are found by their status, all of them."""

import pytest

from holdfast.jobs.model import JobStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import GIVEN_UP, TOKEN, decided, new_job, started

CROWD = 40
LARGE = "x" * 40_000
"""Of metadata: forty of these are more than the megabyte that DynamoDB answers at once."""


class LookupPromises:
    """R004-091, R004-127, R004-193, R004-198; D-20, JB-23, I-JB-10."""

    @pytest.mark.parametrize("status", JobStatus)
    def test_where_there_is_nothing_nothing_is_found(
        self, repository: JobStateRepository, status: JobStatus
    ) -> None:
        assert repository.find_by_status(status) == []

    def test_jobs_are_found_whole_with_and_without_token(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        waiting = new_job(clock, "waiting", task_token=TOKEN, metadata={"a": [1]})
        free = new_job(clock, "free")
        repository.save(waiting)
        repository.save(free)
        started(repository, clock, job_id="another")
        found = repository.find_by_status(JobStatus.PROCESSING)
        assert sorted(found, key=lambda job: job.job_id) == [free, waiting]
        assert [j.job_id for j in repository.find_by_status(JobStatus.DOWNLOADING)] == [
            "another"
        ]

    def test_all_pages_are_read(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        for n in range(CROWD):
            repository.save(new_job(clock, f"{n:02}", metadata={"large": LARGE}))
        found = repository.find_by_status(JobStatus.PROCESSING)
        assert sorted(job.job_id for job in found) == [f"{n:02}" for n in range(CROWD)]

    def test_a_job_is_found_where_it_is_now(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        decided(repository, clock)
        assert [j.job_id for j in repository.find_by_status(JobStatus.DOWNLOADING)] == ["job"]
        repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        assert repository.find_by_status(JobStatus.DOWNLOADING) == []
        [job] = repository.find_by_status(JobStatus.FAILED)
        assert (job.error, job.task_token) == (GIVEN_UP, None)
