"""A job has one token at a time, and keeps it until its outcome was sent."""

import pytest

from contracts.jobs.support import (
    CLOSED,
    GIVEN_UP,
    OTHER_TOKEN,
    TOKEN,
    JobPromises,
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

THIRD_TOKEN = TaskToken("the-token-of-a-third-execution")


class TokenPromises(JobPromises):
    """The promises about task tokens (JB-14, JB-35)."""

    def test_a_job_has_the_token_that_came_last(self) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        self.jobs.record_results("job", [make_success(tasks[0])])
        self.clock.advance(1.0)
        job = self.jobs.attach_token("job", OTHER_TOKEN)
        assert job == read_job(self.jobs)
        assert (job.task_token, job.token_generation) == (OTHER_TOKEN, 1)
        assert job.updated_at == self.clock.time()
        assert read_counters(self.jobs) == (1, 0)

    def test_the_same_token_again_changes_nothing(self) -> None:
        start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        before = read_job(self.jobs)
        self.clock.advance(1.0)
        assert self.jobs.attach_token("job", TOKEN) == before
        assert read_job(self.jobs) == before

    def test_a_token_that_had_the_job_does_not_get_it_back(self) -> None:
        """The message of a superseded execution is delivered again."""
        start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        job = self.jobs.attach_token("job", OTHER_TOKEN)
        self.clock.advance(1.0)
        assert self.jobs.attach_token("job", TOKEN) == job == read_job(self.jobs)

    @pytest.mark.parametrize("state", ["decided", "given up", "settled", "ended"])
    def test_a_job_whose_outcome_is_decided_takes_no_other_token(self, state: str) -> None:
        if state == "decided":
            decide_job(self.jobs, self.clock)
        else:
            start_job(self.jobs, self.clock, task_token=None if state == "ended" else TOKEN)
        if state in ("given up", "settled"):
            self.jobs.give_up("job", GIVEN_UP)
        if state == "settled":
            self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP)
        if state == "ended":
            self.jobs.update_job_status("job", JobStatus.FAILED)
        with self.unchanged(), pytest.raises(JobClosed) as refused:
            self.jobs.attach_token("job", OTHER_TOKEN)
        assert OTHER_TOKEN.reveal() not in str(refused.value)

    def test_a_job_works_on_after_its_token_was_found_closed(self) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        noted = self.jobs.note_token_closed("job", TOKEN, CLOSED)
        assert noted == read_job(self.jobs)
        assert (noted.token_closed_at, noted.error) == (self.clock.time(), CLOSED)
        self.clock.advance(1.0)
        assert self.jobs.note_token_closed("job", TOKEN, GIVEN_UP) is None
        assert read_job(self.jobs) == noted
        assert self.jobs.record_results("job", [make_success(task) for task in tasks]) == 3
        assert self.jobs.claim_outcome("job") is not None
        assert self.jobs.settle("job", JobStatus.COMPLETED, None)
        job = read_job(self.jobs)
        assert (job.status, job.error, job.token_closed_at) == (
            JobStatus.COMPLETED,
            None,
            None,
        )

    def test_a_closed_token_is_noted_only_while_its_execution_has_the_job(self) -> None:
        start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        self.jobs.attach_token("job", OTHER_TOKEN)
        assert self.jobs.note_token_closed("job", TOKEN, CLOSED) is None
        self.jobs.give_up("job", GIVEN_UP)
        assert self.jobs.note_token_closed("job", OTHER_TOKEN, CLOSED) is None
        assert read_job(self.jobs).token_closed_at is None

    def test_a_job_whose_token_is_closed_is_given_up_after_its_grace(self) -> None:
        start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        assert self.jobs.give_up_closed("job", grace_seconds=0.0) is None
        self.jobs.note_token_closed("job", TOKEN, CLOSED)
        self.clock.advance(59.0)
        assert self.jobs.give_up_closed("job", grace_seconds=60.0) is None
        self.clock.advance(1.0)
        job = self.jobs.give_up_closed("job", grace_seconds=60.0)
        assert job is not None
        assert job == read_job(self.jobs)
        callback = job.callback
        assert (callback.state, callback.error) == (CallbackState.PENDING, CLOSED)
        assert self.jobs.give_up_closed("job", grace_seconds=60.0) is None

    def test_another_token_ends_the_wait_for_one(self) -> None:
        start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        self.jobs.note_token_closed("job", TOKEN, CLOSED)
        job = self.jobs.attach_token("job", OTHER_TOKEN)
        assert (job.token_closed_at, job.error, job.status) == (
            None,
            None,
            JobStatus.DOWNLOADING,
        )
        self.clock.advance(1.0)
        assert self.jobs.give_up_closed("job", grace_seconds=0.0) is None
        assert read_job(self.jobs) == job

    @pytest.mark.parametrize("settled", [True, False])
    @pytest.mark.parametrize("sealed", [True, False])
    def test_another_token_reopens_a_job_that_failed_because_its_token_was_closed(
        self, open_repository: OpenRepository, settled: bool, sealed: bool
    ) -> None:
        self.jobs = open_repository(self.clock, keep_seconds=60.0)
        start = start_sealed_job if sealed else start_job
        tasks = start(self.jobs, self.clock, task_token=TOKEN)
        self.jobs.record_results("job", [make_success(tasks[0])])
        self.jobs.note_token_closed("job", TOKEN, CLOSED)
        self.jobs.give_up_closed("job", grace_seconds=0.0)
        self.jobs.begin_callback("job", again_after_seconds=20.0)
        if settled:
            self.jobs.settle("job", JobStatus.FAILED, CLOSED)
        before = read_job(self.jobs)
        assert self.jobs.attach_token("job", TOKEN) == before  # it had the job
        job = self.jobs.attach_token("job", OTHER_TOKEN)
        assert job == read_job(self.jobs)
        assert (job.status, job.callback, job.error) == (
            JobStatus.DOWNLOADING,
            NO_CALLBACK,
            None,
        )
        assert (job.ttl, job.completed_at, job.token_closed_at) == (None, None, None)
        assert (job.task_token, job.token_generation) == (OTHER_TOKEN, 1)
        assert [found.job_id for found in self.jobs.find_by_status(job.status)] == ["job"]
        if not sealed:
            self.jobs.set_total_tasks("job", len(tasks))
        assert self.jobs.record_results("job", [make_success(task) for task in tasks]) == 2
        assert_counters_match_rows(self.jobs)
        decided = self.jobs.claim_outcome("job")
        assert decided is not None
        assert decided.callback.status is JobStatus.COMPLETED

    def test_a_reopened_job_ignores_the_end_of_an_attempt_for_its_old_token(self) -> None:
        """The process of the attempt was frozen until the job was decided again."""
        decide_job(self.jobs, self.clock)
        old = self.jobs.begin_callback("job", again_after_seconds=20.0)
        assert old is not None
        assert self.jobs.settle("job", JobStatus.FAILED, CLOSED, generation=0)
        self.jobs.attach_token("job", OTHER_TOKEN)
        self.jobs.claim_outcome("job")
        self.jobs.begin_callback("job", again_after_seconds=20.0)
        pending = read_job(self.jobs)
        generation = old.token_generation
        assert not self.jobs.settle("job", JobStatus.FAILED, CLOSED, generation=generation)
        self.jobs.end_callback("job", in_doubt=False, generation=generation)
        assert read_job(self.jobs) == pending
        assert self.jobs.settle("job", JobStatus.COMPLETED, None, generation=1)
        with pytest.raises(JobClosed):
            self.jobs.attach_token("job", THIRD_TOKEN)
