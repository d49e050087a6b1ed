"""A job answers to one token at a time, and keeps it until it answered."""

import pytest

from holdfast.jobs.errors import JobClosed
from holdfast.jobs.model import JobStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    GIVEN_UP,
    OTHER_TOKEN,
    TOKEN,
    counters,
    decided,
    job_of,
    sealed,
    started,
    succeeded,
)


class TokenPromises:
    """R004-017, R004-062, R004-084; JB-14, JB-35."""

    def test_a_job_answers_to_the_token_that_came_last(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = sealed(repository, clock, task_token=TOKEN)
        repository.record_results("job", [succeeded(tasks[0])])
        clock.advance(1.0)
        job = repository.attach_token("job", OTHER_TOKEN)
        assert job == job_of(repository)
        assert (job.task_token, job.token_generation) == (OTHER_TOKEN, 1)
        assert job.updated_at == clock.time()
        assert counters(repository) == (1, 0)

    def test_a_token_that_had_the_job_does_not_get_it_back(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """The message of an execution that was superseded comes again."""
        sealed(repository, clock, task_token=TOKEN)
        job = repository.attach_token("job", OTHER_TOKEN)
        clock.advance(1.0)
        assert repository.attach_token("job", TOKEN) == job == job_of(repository)

    def test_the_same_token_again_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        sealed(repository, clock, task_token=TOKEN)
        was = job_of(repository)
        clock.advance(1.0)
        assert repository.attach_token("job", TOKEN) == was
        assert job_of(repository) == was

    def test_a_job_without_token_can_be_given_one(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        started(repository, clock)
        job = repository.attach_token("job", TOKEN)
        assert (job.task_token, job.token_generation) == (TOKEN, 1)

    @pytest.mark.parametrize("state", ["decided", "given up", "settled", "ended"])
    def test_a_job_whose_outcome_is_decided_takes_no_other_token(
        self, repository: JobStateRepository, clock: ManualClock, state: str
    ) -> None:
        if state == "decided":
            decided(repository, clock)
        else:
            started(repository, clock, task_token=None if state == "ended" else TOKEN)
        if state in ("given up", "settled"):
            repository.give_up("job", GIVEN_UP)
        if state == "settled":
            repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        if state == "ended":
            repository.update_job_status("job", JobStatus.FAILED)
        was = job_of(repository)
        with pytest.raises(JobClosed) as refused:
            repository.attach_token("job", OTHER_TOKEN)
        assert OTHER_TOKEN.reveal() not in str(refused.value)
        assert job_of(repository) == was
