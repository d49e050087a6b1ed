"""Promises about the outcome of a job and its callback."""

import pytest

from contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    JobPromises,
    OpenRepository,
    decide_job,
    finish_all_tasks,
    make_failure,
    make_success,
    new_job,
    read_job,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import IllegalTransition
from holdfast.exports.model import CallbackState, JobError, JobStatus
from holdfast.exports.ports import JobStateRepository


class OutcomePromises(JobPromises):
    """The promises of `claim_outcome` and `give_up`.

    (JB-02 to JB-06, JB-11).
    """

    @pytest.mark.requirement("R004-116", "R004-118")
    def test_a_job_whose_tasks_all_succeeded_is_completed(self) -> None:
        finish_all_tasks(self.jobs, self.clock, task_token=TOKEN)
        self.clock.advance(1.0)
        job = self.jobs.claim_outcome("job")
        assert job is not None
        assert job.callback.state is CallbackState.PENDING
        assert (job.callback.status, job.callback.error) == (JobStatus.COMPLETED, None)
        assert job.callback.attempts == 0
        assert (job.callback.in_doubt, job.callback.attempted_at) == (False, None)
        assert job == read_job(self.jobs)
        assert job.updated_at == self.clock.time()

    @pytest.mark.requirement("R004-122")
    def test_a_decided_job_is_active_until_its_outcome_is_sent(self) -> None:
        job = decide_job(self.jobs, self.clock)
        assert (job.status, job.task_token, job.completed_at) == (
            JobStatus.DOWNLOADING,
            TOKEN,
            None,
        )

    @pytest.mark.requirement("R004-118")
    @pytest.mark.parametrize("failures", [1, 2])
    def test_a_job_with_failed_tasks_failed(self, failures: int) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, 3)
        self.jobs.record_results("job", [make_failure(task) for task in tasks[:failures]])
        self.jobs.record_results("job", [make_success(task) for task in tasks[failures:]])
        job = self.jobs.claim_outcome("job")
        assert job is not None
        assert job.callback.status is JobStatus.FAILED
        assert job.callback.error == JobError(
            "JobCompletedWithFailures", f"{failures} tasks failed"
        )

    @pytest.mark.requirement("R004-116")
    @pytest.mark.parametrize("early", ["processing", "not sealed", "one left"])
    def test_a_claim_before_all_tasks_are_counted_gets_nothing(self, early: str) -> None:
        if early == "processing":
            self.jobs.save(new_job(self.clock))
            self.jobs.set_total_tasks("job", 0)
        elif early == "not sealed":
            start_job(self.jobs, self.clock, 0)
        else:
            tasks = start_sealed_job(self.jobs, self.clock, 2)
            self.jobs.record_results("job", [make_success(tasks[0])])
        with self.unchanged():
            assert self.jobs.claim_outcome("job") is None

    def test_the_outcome_is_claimed_once(self) -> None:
        job = decide_job(self.jobs, self.clock)
        assert self.jobs.claim_outcome("job") is None
        assert self.jobs.give_up("job", GIVEN_UP) is None
        assert read_job(self.jobs) == job
        self.jobs.settle("job", JobStatus.COMPLETED, None)
        settled = read_job(self.jobs)
        assert self.jobs.claim_outcome("job") is None
        assert self.jobs.give_up("job", GIVEN_UP) is None
        assert read_job(self.jobs) == settled

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_an_active_job_can_be_given_up(self, status: JobStatus) -> None:
        """(JB-13, JB-39)"""
        self.jobs.save(new_job(self.clock, task_token=TOKEN))
        self.jobs.update_job_status("job", status)
        self.clock.advance(1.0)
        job = self.jobs.give_up("job", GIVEN_UP)
        assert job is not None
        assert (job.status, job.task_token) == (status, TOKEN)
        assert job.callback.state is CallbackState.PENDING
        assert (job.callback.status, job.callback.error) == (JobStatus.FAILED, GIVEN_UP)
        assert job == read_job(self.jobs)
        assert job.updated_at == self.clock.time()

    def test_a_given_up_job_is_not_completed_by_its_last_task(self) -> None:
        finish_all_tasks(self.jobs, self.clock)
        assert self.jobs.give_up("job", GIVEN_UP)
        assert self.jobs.claim_outcome("job") is None
        assert read_job(self.jobs).callback.error == GIVEN_UP

    def test_a_job_that_ended_cannot_be_given_up(self) -> None:
        start_job(self.jobs, self.clock)
        self.jobs.update_job_status("job", JobStatus.FAILED)
        with self.unchanged():
            assert self.jobs.give_up("job", GIVEN_UP) is None
            assert self.jobs.claim_outcome("job") is None


AGAIN = 30.0


def begin(repository: JobStateRepository) -> bool:
    """Begin an attempt, and return whether it was allowed."""
    return repository.begin_callback("job", again_after_seconds=AGAIN) is not None


class CallbackPromises(JobPromises):
    """The promises about callbacks (JB-07, JB-08, JB-09, JB-35)."""

    def test_an_attempt_is_in_doubt_until_it_ended(self) -> None:
        before = decide_job(self.jobs, self.clock)
        self.clock.advance(1.0)
        assert self.jobs.begin_callback("job", again_after_seconds=AGAIN) == before
        callback = read_job(self.jobs).callback
        assert (callback.state, callback.attempts) == (CallbackState.PENDING, 1)
        assert (callback.in_doubt, callback.attempted_at) == (True, self.clock.time())
        assert read_job(self.jobs).updated_at == self.clock.time()

    def test_an_attempt_that_never_ended_is_made_again_and_stays_in_doubt(self) -> None:
        decide_job(self.jobs, self.clock)
        assert begin(self.jobs)
        self.clock.advance(AGAIN)
        job = self.jobs.begin_callback("job", again_after_seconds=AGAIN)
        assert job is not None
        assert (job.callback.attempts, job.callback.in_doubt) == (1, True)
        callback = read_job(self.jobs).callback
        assert (callback.attempts, callback.attempted_at) == (2, self.clock.time())

    @pytest.mark.parametrize("in_doubt", [False, True])
    def test_an_attempt_that_failed_is_made_again_at_once(self, in_doubt: bool) -> None:
        decide_job(self.jobs, self.clock)
        assert begin(self.jobs)
        self.clock.advance(1.0)
        self.jobs.end_callback("job", in_doubt=in_doubt)
        callback = read_job(self.jobs).callback
        assert (callback.attempts, callback.attempted_at) == (1, None)
        assert callback.in_doubt is in_doubt
        assert read_job(self.jobs).updated_at == self.clock.time()
        job = self.jobs.begin_callback("job", again_after_seconds=AGAIN)
        assert job is not None
        assert job.callback.in_doubt is in_doubt
        assert read_job(self.jobs).callback.in_doubt
        assert read_job(self.jobs).callback.attempts == 2

    @pytest.mark.parametrize("state", ["open", "settled"])
    def test_no_attempt_begins_unless_a_callback_is_pending(self, state: str) -> None:
        if state == "open":
            start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        else:
            decide_job(self.jobs, self.clock)
            self.jobs.settle("job", JobStatus.COMPLETED, None)
        with self.unchanged():
            self.clock.advance(AGAIN)
            assert not begin(self.jobs)
            self.jobs.end_callback("job", in_doubt=True)

    # -- settling

    @pytest.mark.requirement("R004-017", "R004-061", "R004-126")
    @pytest.mark.parametrize(
        ("status", "error"),
        [(JobStatus.COMPLETED, None), (JobStatus.FAILED, JobError("TaskTimedOut", "too late"))],
    )
    def test_settling_ends_the_job_and_deletes_its_token(
        self, status: JobStatus, error: JobError | None
    ) -> None:
        decide_job(self.jobs, self.clock)
        begin(self.jobs)
        self.clock.advance(1.0)
        assert self.jobs.settle("job", status, error) is True
        job = read_job(self.jobs)
        assert (job.status, job.error) == (status, error)
        assert (job.completed_at, job.updated_at) == (self.clock.time(), self.clock.time())
        assert job.callback.state is CallbackState.SENT
        assert not job.callback.in_doubt  # it was, from `begin_callback` on
        assert (job.callback.attempts, job.callback.attempted_at) == (1, None)
        assert not job.has_task_token()
        assert job.ttl is None

    def test_a_given_up_job_is_settled_from_where_it_was(self) -> None:
        self.jobs.save(new_job(self.clock, task_token=TOKEN))
        self.jobs.give_up("job", GIVEN_UP)
        assert self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP) is True
        assert read_job(self.jobs).status is JobStatus.FAILED

    def test_one_caller_settles(self) -> None:
        decide_job(self.jobs, self.clock)
        assert self.jobs.settle("job", JobStatus.COMPLETED, None) is True
        with self.unchanged():
            self.clock.advance(1.0)
            assert self.jobs.settle("job", JobStatus.COMPLETED, None) is False
            assert self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP) is False

    def test_a_job_without_outcome_is_not_settled(self) -> None:
        start_sealed_job(self.jobs, self.clock, task_token=TOKEN)
        with self.unchanged():
            assert self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP) is False

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_a_job_is_not_settled_with_a_status_that_is_not_terminal(
        self, status: JobStatus
    ) -> None:
        decide_job(self.jobs, self.clock)
        with self.unchanged(), pytest.raises((IllegalTransition, ValueError)):
            self.jobs.settle("job", status, None)

    @pytest.mark.requirement("R004-065")
    def test_only_finished_jobs_get_a_ttl(self, open_repository: OpenRepository) -> None:
        """A job that is deleted early would be created again (JB-36)."""
        self.jobs = open_repository(self.clock, keep_seconds=3600.0)
        assert decide_job(self.jobs, self.clock).ttl is None
        begin(self.jobs)
        assert read_job(self.jobs).ttl is None
        self.clock.advance(1.0)
        self.jobs.settle("job", JobStatus.COMPLETED, None)
        assert read_job(self.jobs).ttl == self.clock.time() + 3600
