"""A job has one token at a time, and keeps it until its outcome was sent."""

import pytest

from holdfast.jobs.errors import JobClosed
from holdfast.jobs.model import JobStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    GIVEN_UP,
    OTHER_TOKEN,
    TOKEN,
    decide_job,
    make_success,
    read_counters,
    read_job,
    start_job,
    start_sealed_job,
)


class TokenPromises:
    """The promises about task tokens (JB-14, JB-35)."""

    def test_a_job_has_the_token_that_came_last(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, task_token=TOKEN)
        repository.record_results("job", [make_success(tasks[0])])
        clock.advance(1.0)
        job = repository.attach_token("job", OTHER_TOKEN)
        assert job == read_job(repository)
        assert (job.task_token, job.token_generation) == (OTHER_TOKEN, 1)
        assert job.updated_at == clock.time()
        assert read_counters(repository) == (1, 0)

    def test_a_token_that_had_the_job_does_not_get_it_back(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """The message of a superseded execution is delivered again."""
        start_sealed_job(repository, clock, task_token=TOKEN)
        job = repository.attach_token("job", OTHER_TOKEN)
        clock.advance(1.0)
        assert repository.attach_token("job", TOKEN) == job == read_job(repository)

    def test_the_same_token_again_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_sealed_job(repository, clock, task_token=TOKEN)
        before = read_job(repository)
        clock.advance(1.0)
        assert repository.attach_token("job", TOKEN) == before
        assert read_job(repository) == before

    def test_a_job_without_token_can_be_given_one(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock)
        job = repository.attach_token("job", TOKEN)
        assert (job.task_token, job.token_generation) == (TOKEN, 1)

    @pytest.mark.parametrize("state", ["decided", "given up", "settled", "ended"])
    def test_a_job_whose_outcome_is_decided_takes_no_other_token(
        self, repository: JobStateRepository, clock: ManualClock, state: str
    ) -> None:
        if state == "decided":
            decide_job(repository, clock)
        else:
            start_job(repository, clock, task_token=None if state == "ended" else TOKEN)
        if state in ("given up", "settled"):
            repository.give_up("job", GIVEN_UP)
        if state == "settled":
            repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        if state == "ended":
            repository.update_job_status("job", JobStatus.FAILED)
        before = read_job(repository)
        with pytest.raises(JobClosed) as refused:
            repository.attach_token("job", OTHER_TOKEN)
        assert OTHER_TOKEN.reveal() not in str(refused.value)
        assert read_job(repository) == before
