"""A job moves only forward, and does not end while it owes a callback."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from contracts.jobs.support import (
    BROKEN,
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
from holdfast.exports.model import CallbackState, JobError, JobState, JobStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock

Move = Callable[[JobStateRepository, JobStatus], None]


def move_by_status(repository: JobStateRepository, status: JobStatus) -> None:
    """Move the job with `update_job_status`."""
    repository.update_job_status("job", status)


def move_by_state(repository: JobStateRepository, status: JobStatus) -> None:
    """Move the job with `update_job_state`."""
    repository.update_job_state("job", replace(read_job(repository).state, status=status))


def bring_to(repository: JobStateRepository, clock: ManualClock, status: JobStatus) -> None:
    """Store a sealed job without tasks, so that only the model can refuse a step."""
    repository.save(new_job(clock))
    repository.set_total_tasks("job", 0)
    if status in (JobStatus.DOWNLOADING, JobStatus.COMPLETED):
        repository.update_job_status("job", JobStatus.DOWNLOADING)
    if status.terminal:
        repository.update_job_status("job", status, GIVEN_UP if _is_failed(status) else None)


def _is_failed(status: JobStatus) -> bool:
    return status is JobStatus.FAILED


class StatusMovePromises(JobPromises):
    """The promises of both ways to set a status (JB-12)."""

    @pytest.fixture(params=[move_by_status, move_by_state])
    def move(self, request: pytest.FixtureRequest) -> Move:
        """Return each way to set a job's status."""
        move: Move = request.param
        return move

    @pytest.mark.requirement("R004-055", "R004-060", "R004-189", "R004-194")
    @pytest.mark.parametrize(("before", "after"), list(product(JobStatus, JobStatus)))
    def test_only_transitions_of_the_model_are_allowed(
        self, move: Move, before: JobStatus, after: JobStatus
    ) -> None:
        bring_to(self.jobs, self.clock, before)
        before_job = read_job(self.jobs)
        self.clock.advance(1.0)
        if before is after:
            move(self.jobs, after)
            assert read_job(self.jobs) == before_job
        elif before.can_become(after):
            move(self.jobs, after)
            assert read_job(self.jobs).status is after
            assert read_job(self.jobs).updated_at == self.clock.time()
        else:
            with pytest.raises(IllegalTransition):
                move(self.jobs, after)
            assert read_job(self.jobs) == before_job

    @pytest.mark.requirement("R004-194")
    @pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED])
    def test_a_job_whose_token_waits_is_not_ended(self, move: Move, status: JobStatus) -> None:
        finish_all_tasks(self.jobs, self.clock, task_token=TOKEN)
        with self.unchanged(), pytest.raises(IllegalTransition):
            move(self.jobs, status)

    @pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED])
    def test_a_job_whose_outcome_is_pending_is_not_ended_by_others(
        self, move: Move, status: JobStatus
    ) -> None:
        decide_job(self.jobs, self.clock, task_token=None)
        with self.unchanged(), pytest.raises(IllegalTransition):
            move(self.jobs, status)

    @pytest.mark.parametrize("lack", ["not sealed", "one left", "one failed"])
    def test_a_job_is_not_completed_before_all_is_done(self, move: Move, lack: str) -> None:
        """(JB-04, JB-11)"""
        prepare = start_job if lack == "not sealed" else start_sealed_job
        tasks = prepare(self.jobs, self.clock, 2)
        last = [] if lack == "one left" else [make_success(tasks[1])]
        if lack == "one failed":
            last = [make_failure(tasks[1])]
        self.jobs.record_results("job", [make_success(tasks[0]), *last])
        with self.unchanged(), pytest.raises(IllegalTransition):
            move(self.jobs, JobStatus.COMPLETED)

    def test_a_job_of_which_all_is_done_can_be_completed(self, move: Move) -> None:
        finish_all_tasks(self.jobs, self.clock)
        self.clock.advance(5.0)
        move(self.jobs, JobStatus.COMPLETED)
        job = read_job(self.jobs)
        assert (job.status, job.completed_at) == (JobStatus.COMPLETED, self.clock.time())
        assert job.callback.state is CallbackState.SENT

    def test_a_given_up_job_may_still_begin_but_its_outcome_stands(self) -> None:
        self.jobs.save(new_job(self.clock))
        self.jobs.give_up("job", GIVEN_UP)
        self.jobs.update_job_status("job", JobStatus.DOWNLOADING)
        job = read_job(self.jobs)
        assert job.status is JobStatus.DOWNLOADING
        assert (job.callback.state, job.callback.error) == (CallbackState.PENDING, GIVEN_UP)


class TransitionPromises(JobPromises):
    """The promises about errors, expiry and counters of a transition."""

    @pytest.mark.requirement("R004-061", "R004-063")
    @pytest.mark.parametrize("error", [None, BROKEN])
    def test_a_job_that_fails_keeps_the_reason(self, error: JobError | None) -> None:
        start_job(self.jobs, self.clock)
        self.clock.advance(5.0)
        self.jobs.update_job_status("job", JobStatus.FAILED, error)
        job = read_job(self.jobs)
        assert (job.error, job.completed_at) == (error, self.clock.time())
        assert job.callback.state is CallbackState.SENT
        assert job.ttl is None

    @pytest.mark.requirement("R004-065")
    def test_a_job_that_ended_without_a_callback_gets_a_ttl_too(
        self, open_repository: OpenRepository
    ) -> None:
        self.jobs = open_repository(self.clock, keep_seconds=60.0)
        start_job(self.jobs, self.clock)
        assert read_job(self.jobs).ttl is None
        self.jobs.update_job_status("job", JobStatus.FAILED, BROKEN)
        assert read_job(self.jobs).ttl == self.clock.time() + 60

    @pytest.mark.requirement("R004-189")
    @pytest.mark.parametrize(
        "counters",
        [{"total_tasks": 4}, {"completed_tasks": 0}, {"failed_tasks": 0}],
        ids=lambda counters: next(iter(counters)),
    )
    @pytest.mark.parametrize("status", [JobStatus.DOWNLOADING, JobStatus.FAILED])
    def test_a_state_with_other_counters_is_refused(
        self, counters: dict[str, int], status: JobStatus
    ) -> None:
        """Only results change counters, so a state that was read before must not."""
        tasks = start_sealed_job(self.jobs, self.clock, 3)
        self.jobs.record_results("job", [make_success(tasks[0]), make_failure(tasks[1])])
        before_job = read_job(self.jobs)
        with pytest.raises(IllegalTransition):
            self.jobs.update_job_state(
                "job", replace(before_job.state, status=status, **counters)
            )
        assert read_job(self.jobs) == before_job

    def test_the_current_state_again_changes_nothing(self) -> None:
        start_sealed_job(self.jobs, self.clock, 3)
        with self.unchanged():
            self.clock.advance(1.0)
            self.jobs.update_job_state("job", JobState(JobStatus.DOWNLOADING, total_tasks=3))
