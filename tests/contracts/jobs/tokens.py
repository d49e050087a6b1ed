"""A job has one token at a time, and keeps it until its outcome was sent."""

import pytest

from contracts.jobs.support import (
    CLOSED,
    GIVEN_UP,
    OTHER_TOKEN,
    TOKEN,
    OpenRepository,
    assert_counters_match_rows,
    decide_job,
    make_success,
    read_counters,
    read_job,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import JobClosed
from holdfast.exports.model import NO_CALLBACK, CallbackState, JobStatus, TaskToken
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock

THIRD_TOKEN = TaskToken("the-token-of-a-third-execution")


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

    def test_the_same_token_again_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_sealed_job(repository, clock, task_token=TOKEN)
        before = read_job(repository)
        clock.advance(1.0)
        assert repository.attach_token("job", TOKEN) == before
        assert read_job(repository) == before

    def test_a_token_that_had_the_job_does_not_get_it_back(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """The message of a superseded execution is delivered again."""
        start_sealed_job(repository, clock, task_token=TOKEN)
        job = repository.attach_token("job", OTHER_TOKEN)
        clock.advance(1.0)
        assert repository.attach_token("job", TOKEN) == job == read_job(repository)

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

    def test_a_job_works_on_after_its_token_was_found_closed(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, task_token=TOKEN)
        noted = repository.note_token_closed("job", TOKEN, CLOSED)
        assert noted == read_job(repository)
        assert (noted.token_closed_at, noted.error) == (clock.time(), CLOSED)
        clock.advance(1.0)
        assert repository.note_token_closed("job", TOKEN, GIVEN_UP) is None
        assert read_job(repository) == noted
        assert repository.record_results("job", [make_success(task) for task in tasks]) == 3
        assert repository.claim_outcome("job") is not None
        assert repository.settle("job", JobStatus.COMPLETED, None)
        job = read_job(repository)
        assert (job.status, job.error, job.token_closed_at) == (
            JobStatus.COMPLETED,
            None,
            None,
        )

    def test_a_closed_token_is_noted_only_while_its_execution_has_the_job(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_sealed_job(repository, clock, task_token=TOKEN)
        repository.attach_token("job", OTHER_TOKEN)
        assert repository.note_token_closed("job", TOKEN, CLOSED) is None
        repository.give_up("job", GIVEN_UP)
        assert repository.note_token_closed("job", OTHER_TOKEN, CLOSED) is None
        assert read_job(repository).token_closed_at is None

    def test_a_job_whose_token_is_closed_is_given_up_after_its_grace(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_sealed_job(repository, clock, task_token=TOKEN)
        assert repository.give_up_closed("job", grace_seconds=0.0) is None
        repository.note_token_closed("job", TOKEN, CLOSED)
        clock.advance(59.0)
        assert repository.give_up_closed("job", grace_seconds=60.0) is None
        clock.advance(1.0)
        job = repository.give_up_closed("job", grace_seconds=60.0)
        assert job is not None
        assert job == read_job(repository)
        callback = job.callback
        assert (callback.state, callback.error) == (CallbackState.PENDING, CLOSED)
        assert repository.give_up_closed("job", grace_seconds=60.0) is None

    def test_another_token_ends_the_wait_for_one(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_sealed_job(repository, clock, task_token=TOKEN)
        repository.note_token_closed("job", TOKEN, CLOSED)
        job = repository.attach_token("job", OTHER_TOKEN)
        assert (job.token_closed_at, job.error, job.status) == (
            None,
            None,
            JobStatus.DOWNLOADING,
        )
        clock.advance(1.0)
        assert repository.give_up_closed("job", grace_seconds=0.0) is None
        assert read_job(repository) == job

    @pytest.mark.parametrize("settled", [True, False])
    @pytest.mark.parametrize("sealed", [True, False])
    def test_another_token_reopens_a_job_that_failed_because_its_token_was_closed(
        self, open_repository: OpenRepository, clock: ManualClock, settled: bool, sealed: bool
    ) -> None:
        repository = open_repository(clock, keep_seconds=60.0)
        start = start_sealed_job if sealed else start_job
        tasks = start(repository, clock, task_token=TOKEN)
        repository.record_results("job", [make_success(tasks[0])])
        repository.note_token_closed("job", TOKEN, CLOSED)
        repository.give_up_closed("job", grace_seconds=0.0)
        repository.begin_callback("job", again_after_seconds=20.0)
        if settled:
            repository.settle("job", JobStatus.FAILED, CLOSED)
        before = read_job(repository)
        assert repository.attach_token("job", TOKEN) == before  # it had the job
        job = repository.attach_token("job", OTHER_TOKEN)
        assert job == read_job(repository)
        assert (job.status, job.callback, job.error) == (
            JobStatus.DOWNLOADING,
            NO_CALLBACK,
            None,
        )
        assert (job.ttl, job.completed_at, job.token_closed_at) == (None, None, None)
        assert (job.task_token, job.token_generation) == (OTHER_TOKEN, 1)
        assert [found.job_id for found in repository.find_by_status(job.status)] == ["job"]
        if not sealed:
            repository.set_total_tasks("job", len(tasks))
        assert repository.record_results("job", [make_success(task) for task in tasks]) == 2
        assert_counters_match_rows(repository)
        decided = repository.claim_outcome("job")
        assert decided is not None
        assert decided.callback.status is JobStatus.COMPLETED

    def test_a_reopened_job_ignores_the_end_of_an_attempt_for_its_old_token(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """The process of the attempt was frozen until the job was decided again."""
        decide_job(repository, clock)
        old = repository.begin_callback("job", again_after_seconds=20.0)
        assert old is not None
        assert repository.settle("job", JobStatus.FAILED, CLOSED, generation=0)
        repository.attach_token("job", OTHER_TOKEN)
        repository.claim_outcome("job")
        repository.begin_callback("job", again_after_seconds=20.0)
        pending = read_job(repository)
        generation = old.token_generation
        assert not repository.settle("job", JobStatus.FAILED, CLOSED, generation=generation)
        repository.end_callback("job", in_doubt=False, generation=generation)
        assert read_job(repository) == pending
        assert repository.settle("job", JobStatus.COMPLETED, None, generation=1)
        with pytest.raises(JobClosed):
            repository.attach_token("job", THIRD_TOKEN)
