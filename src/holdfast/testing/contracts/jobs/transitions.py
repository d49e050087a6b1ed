"""A job moves forward only, and not past what it owes."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from holdfast.jobs.errors import IllegalTransition
from holdfast.jobs.model import CallbackState, JobError, JobState, JobStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    BROKEN,
    GIVEN_UP,
    TOKEN,
    OpenRepository,
    all_done,
    decided,
    failed,
    job_of,
    new_job,
    sealed,
    started,
    succeeded,
)

Move = Callable[[JobStateRepository, JobStatus], None]


def by_status(repository: JobStateRepository, status: JobStatus) -> None:
    repository.update_job_status("job", status)


def by_state(repository: JobStateRepository, status: JobStatus) -> None:
    repository.update_job_state("job", replace(job_of(repository).state, status=status))


def brought_to(repository: JobStateRepository, clock: ManualClock, status: JobStatus) -> None:
    """A sealed job of no tasks, so that nothing but the model can refuse a step."""
    repository.save(new_job(clock))
    repository.set_total_tasks("job", 0)
    if status in (JobStatus.DOWNLOADING, JobStatus.COMPLETED):
        repository.update_job_status("job", JobStatus.DOWNLOADING)
    if status.terminal:
        repository.update_job_status("job", status, GIVEN_UP if _failed(status) else None)


def _failed(status: JobStatus) -> bool:
    return status is JobStatus.FAILED


class StatusMovePromises:
    """R004-055, R004-189, R004-194; I-JB-4, JB-12."""

    @pytest.fixture(params=[by_status, by_state])
    def move(self, request: pytest.FixtureRequest) -> Move:
        move: Move = request.param
        return move

    @pytest.mark.parametrize(("before", "after"), list(product(JobStatus, JobStatus)))
    def test_only_steps_of_the_model_are_taken(
        self,
        repository: JobStateRepository,
        clock: ManualClock,
        move: Move,
        before: JobStatus,
        after: JobStatus,
    ) -> None:
        brought_to(repository, clock, before)
        was = job_of(repository)
        clock.advance(1.0)
        if before is after:
            move(repository, after)
            assert job_of(repository) == was
        elif before.may_become(after):
            move(repository, after)
            assert job_of(repository).status is after
            assert job_of(repository).updated_at == clock.time()
        else:
            with pytest.raises(IllegalTransition):
                move(repository, after)
            assert job_of(repository) == was

    @pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED])
    def test_a_job_whose_token_waits_is_not_ended(
        self, repository: JobStateRepository, clock: ManualClock, move: Move, status: JobStatus
    ) -> None:
        all_done(repository, clock, task_token=TOKEN)
        was = job_of(repository)
        with pytest.raises(IllegalTransition):
            move(repository, status)
        assert job_of(repository) == was

    @pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.FAILED])
    def test_a_job_whose_outcome_is_pending_is_not_ended_by_others(
        self, repository: JobStateRepository, clock: ManualClock, move: Move, status: JobStatus
    ) -> None:
        decided(repository, clock, task_token=None)
        was = job_of(repository)
        with pytest.raises(IllegalTransition):
            move(repository, status)
        assert job_of(repository) == was

    @pytest.mark.parametrize("lack", ["not sealed", "one left", "one failed"])
    def test_a_job_is_not_completed_before_all_is_done(
        self, repository: JobStateRepository, clock: ManualClock, move: Move, lack: str
    ) -> None:
        """JB-04, JB-11."""
        prepare = started if lack == "not sealed" else sealed
        tasks = prepare(repository, clock, 2)
        last = [] if lack == "one left" else [succeeded(tasks[1])]
        if lack == "one failed":
            last = [failed(tasks[1])]
        repository.record_results("job", [succeeded(tasks[0]), *last])
        was = job_of(repository)
        with pytest.raises(IllegalTransition):
            move(repository, JobStatus.COMPLETED)
        assert job_of(repository) == was

    def test_a_job_of_which_all_is_done_can_be_completed(
        self, repository: JobStateRepository, clock: ManualClock, move: Move
    ) -> None:
        all_done(repository, clock)
        clock.advance(5.0)
        move(repository, JobStatus.COMPLETED)
        job = job_of(repository)
        assert (job.status, job.completed_at) == (JobStatus.COMPLETED, clock.time())
        assert job.callback.state is CallbackState.SENT


class TransitionPromises:
    @pytest.mark.parametrize("error", [None, BROKEN])
    def test_a_job_that_fails_keeps_the_reason(
        self, repository: JobStateRepository, clock: ManualClock, error: JobError | None
    ) -> None:
        """R004-061, R004-063."""
        started(repository, clock)
        clock.advance(5.0)
        repository.update_job_status("job", JobStatus.FAILED, error)
        job = job_of(repository)
        assert (job.error, job.completed_at) == (error, clock.time())
        assert job.callback.state is CallbackState.SENT
        assert job.ttl is None

    def test_a_job_ended_without_an_answer_may_be_forgotten_in_time_too(
        self, open_repository: OpenRepository, clock: ManualClock
    ) -> None:
        """R004-065."""
        repository = open_repository(clock, keep_seconds=60.0)
        started(repository, clock)
        assert job_of(repository).ttl is None
        repository.update_job_status("job", JobStatus.FAILED, BROKEN)
        assert job_of(repository).ttl == clock.time() + 60

    def test_a_given_up_job_may_still_begin_but_its_outcome_stands(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        repository.give_up("job", GIVEN_UP)
        repository.update_job_status("job", JobStatus.DOWNLOADING)
        job = job_of(repository)
        assert job.status is JobStatus.DOWNLOADING
        assert (job.callback.state, job.callback.error) == (CallbackState.PENDING, GIVEN_UP)

    @pytest.mark.parametrize(
        "counters",
        [{"total_tasks": 4}, {"completed_tasks": 0}, {"failed_tasks": 0}],
        ids=lambda counters: next(iter(counters)),
    )
    @pytest.mark.parametrize("status", [JobStatus.DOWNLOADING, JobStatus.FAILED])
    def test_a_state_with_other_counters_is_refused(
        self,
        repository: JobStateRepository,
        clock: ManualClock,
        counters: dict[str, int],
        status: JobStatus,
    ) -> None:
        """Counters follow from results alone; what was read before is no reason to write."""
        tasks = sealed(repository, clock, 3)
        repository.record_results("job", [succeeded(tasks[0]), failed(tasks[1])])
        was = job_of(repository)
        with pytest.raises(IllegalTransition):
            repository.update_job_state("job", replace(was.state, status=status, **counters))
        assert job_of(repository) == was

    def test_a_state_that_is_the_job_s_own_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        sealed(repository, clock, 3)
        was = job_of(repository)
        clock.advance(1.0)
        repository.update_job_state("job", JobState(JobStatus.DOWNLOADING, total_tasks=3))
        assert job_of(repository) == was
