"""The outbox: an attempt is noted before it is made, and the answer is out once."""

import pytest

from holdfast.jobs.errors import IllegalTransition
from holdfast.jobs.model import CallbackState, JobError, JobStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    OpenRepository,
    decided,
    job_of,
    new_job,
    sealed,
)

AGAIN = 30.0


def begin(repository: JobStateRepository) -> bool:
    return repository.begin_callback("job", again_after_seconds=AGAIN) is not None


class CallbackPromises:
    """R004-126; JB-07, JB-08, JB-09, JB-35, I-JB-3."""

    def test_an_attempt_is_in_doubt_until_it_ended(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        was = decided(repository, clock)
        clock.advance(1.0)
        assert repository.begin_callback("job", again_after_seconds=AGAIN) == was
        callback = job_of(repository).callback
        assert (callback.state, callback.attempts) == (CallbackState.PENDING, 1)
        assert (callback.in_doubt, callback.attempted_at) == (True, clock.time())
        assert job_of(repository).updated_at == clock.time()

    def test_one_attempt_at_a_time(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        decided(repository, clock)
        assert begin(repository)
        was = job_of(repository)
        clock.advance(AGAIN - 0.25)
        assert not begin(repository)
        assert job_of(repository) == was

    def test_an_attempt_that_never_ended_is_made_again_and_stays_in_doubt(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        decided(repository, clock)
        assert begin(repository)
        clock.advance(AGAIN)
        job = repository.begin_callback("job", again_after_seconds=AGAIN)
        assert job is not None
        assert (job.callback.attempts, job.callback.in_doubt) == (1, True)
        callback = job_of(repository).callback
        assert (callback.attempts, callback.attempted_at) == (2, clock.time())

    @pytest.mark.parametrize("in_doubt", [False, True])
    def test_an_attempt_that_failed_is_made_again_at_once(
        self, repository: JobStateRepository, clock: ManualClock, in_doubt: bool
    ) -> None:
        decided(repository, clock)
        assert begin(repository)
        clock.advance(1.0)
        repository.end_callback("job", in_doubt=in_doubt)
        callback = job_of(repository).callback
        assert (callback.attempts, callback.attempted_at) == (1, None)
        assert callback.in_doubt is in_doubt
        assert job_of(repository).updated_at == clock.time()
        job = repository.begin_callback("job", again_after_seconds=AGAIN)
        assert job is not None
        assert job.callback.in_doubt is in_doubt
        assert job_of(repository).callback.in_doubt
        assert job_of(repository).callback.attempts == 2

    @pytest.mark.parametrize("state", ["open", "settled"])
    def test_where_nothing_is_pending_nothing_is_tried(
        self, repository: JobStateRepository, clock: ManualClock, state: str
    ) -> None:
        if state == "open":
            sealed(repository, clock, task_token=TOKEN)
        else:
            decided(repository, clock)
            repository.settle("job", JobStatus.COMPLETED, None)
        was = job_of(repository)
        clock.advance(AGAIN)
        assert not begin(repository)
        repository.end_callback("job", in_doubt=True)
        assert job_of(repository) == was

    # -- settling

    @pytest.mark.parametrize(
        ("status", "error"),
        [(JobStatus.COMPLETED, None), (JobStatus.FAILED, JobError("TaskTimedOut", "too late"))],
    )
    def test_the_answer_ends_the_job_and_the_token_is_forgotten(
        self,
        repository: JobStateRepository,
        clock: ManualClock,
        status: JobStatus,
        error: JobError | None,
    ) -> None:
        decided(repository, clock)
        begin(repository)
        clock.advance(1.0)
        assert repository.settle("job", status, error) is True
        job = job_of(repository)
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
        assert job_of(repository).status is JobStatus.FAILED

    def test_one_caller_settles(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        decided(repository, clock)
        assert repository.settle("job", JobStatus.COMPLETED, None) is True
        was = job_of(repository)
        clock.advance(1.0)
        assert repository.settle("job", JobStatus.COMPLETED, None) is False
        assert repository.settle("job", JobStatus.FAILED, GIVEN_UP) is False
        assert job_of(repository) == was

    def test_a_job_without_outcome_is_not_settled(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        sealed(repository, clock, task_token=TOKEN)
        was = job_of(repository)
        assert repository.settle("job", JobStatus.FAILED, GIVEN_UP) is False
        assert job_of(repository) == was

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_a_job_is_not_settled_as_something_unfinished(
        self, repository: JobStateRepository, clock: ManualClock, status: JobStatus
    ) -> None:
        decided(repository, clock)
        was = job_of(repository)
        with pytest.raises((IllegalTransition, ValueError)):
            repository.settle("job", status, None)
        assert job_of(repository) == was

    def test_only_finished_jobs_are_to_be_forgotten(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> None:
        """R004-065; JB-36: a job that is forgotten early would be made up again."""
        repository = open_repository(clock, keep_seconds=3600.0)
        assert decided(repository, clock).ttl is None
        begin(repository)
        assert job_of(repository).ttl is None
        clock.advance(1.0)
        repository.settle("job", JobStatus.COMPLETED, None)
        assert job_of(repository).ttl == clock.time() + 3600
