"""All jobs are found by their status."""

import pytest

from contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    decide_job,
    new_job,
    start_job,
)
from holdfast.exports.model import JobStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock

JOBS = 40
LARGE = "x" * 40_000
"""Metadata. Forty of these are more than the megabyte that DynamoDB returns at once."""


class LookupPromises:
    """The promises of `find_by_status` (JB-23)."""

    @pytest.mark.requirement("R004-198")
    @pytest.mark.parametrize("status", JobStatus)
    def test_an_empty_store_has_no_jobs_of_any_status(
        self, repository: JobStateRepository, status: JobStatus
    ) -> None:
        assert repository.find_by_status(status) == []

    @pytest.mark.requirement("R004-091", "R004-193", "R004-199")
    def test_jobs_are_found_whole_with_and_without_token(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        with_token = new_job(clock, "with", task_token=TOKEN, metadata={"a": [1]})
        without_token = new_job(clock, "without")
        repository.save(with_token)
        repository.save(without_token)
        start_job(repository, clock, job_id="another")
        jobs = repository.find_by_status(JobStatus.PROCESSING)
        assert sorted(jobs, key=lambda job: job.job_id) == [with_token, without_token]
        assert [j.job_id for j in repository.find_by_status(JobStatus.DOWNLOADING)] == [
            "another"
        ]

    @pytest.mark.requirement("R004-193", "R004-195")
    def test_all_pages_are_read(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        for n in range(JOBS):
            repository.save(new_job(clock, f"{n:02}", metadata={"large": LARGE}))
        jobs = repository.find_by_status(JobStatus.PROCESSING)
        assert sorted(job.job_id for job in jobs) == [f"{n:02}" for n in range(JOBS)]

    @pytest.mark.requirement("R004-127")
    def test_a_job_is_found_by_its_current_status(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        decide_job(repository, clock)
        assert [j.job_id for j in repository.find_by_status(JobStatus.DOWNLOADING)] == ["job"]
        repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        assert repository.find_by_status(JobStatus.DOWNLOADING) == []
        [job] = repository.find_by_status(JobStatus.FAILED)
        assert (job.error, job.task_token) == (GIVEN_UP, None)
