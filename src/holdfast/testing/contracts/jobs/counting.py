"""Each task is counted once, whoever reports it how often."""

from dataclasses import replace

import pytest

from holdfast.jobs.errors import JobClosed
from holdfast.jobs.model import CallbackState, JobStatus, TaskResult, TaskStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock
from holdfast.testing.contracts.jobs.support import (
    BROKEN,
    GIVEN_UP,
    MANY,
    assert_books_agree,
    counters,
    decided,
    failed,
    job_of,
    new_job,
    rows,
    sealed,
    started,
    succeeded,
    tasks_of,
)


class CountingPromises:
    """R004-049, R004-057, R004-058, R004-103, R004-190, R004-191; JB-01, JB-30, I-JB-1."""

    def test_results_finish_rows_and_are_counted(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = sealed(repository, clock, 3)
        assert (
            repository.record_results("job", [succeeded(tasks[0], 11), failed(tasks[1])]) == 2
        )
        assert counters(repository) == (1, 1)
        done, broken, waiting = rows(repository)
        assert (done.status, done.bytes_processed) == (TaskStatus.COMPLETED, 11)
        assert (broken.status, broken.error) == (TaskStatus.FAILED, BROKEN)
        assert waiting == tasks[2]
        assert job_of(repository).remaining_tasks == 1
        assert_books_agree(repository)

    def test_a_result_reported_again_is_not_counted_again(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = started(repository, clock)
        assert repository.record_results("job", [succeeded(tasks[0])]) == 1
        assert repository.record_results("job", [succeeded(tasks[0])]) == 0
        assert repository.record_results("job", [succeeded(t) for t in tasks]) == 2
        assert counters(repository) == (3, 0)

    def test_the_first_result_of_a_task_stays(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = started(repository, clock, 2)
        repository.record_results("job", [succeeded(tasks[0]), failed(tasks[1])])
        before = rows(repository)
        assert repository.record_results("job", [failed(tasks[0]), succeeded(tasks[1])]) == 0
        assert counters(repository) == (1, 1)
        assert rows(repository) == before

    def test_a_task_named_twice_in_one_batch_is_counted_once(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = started(repository, clock, 2)
        batch = [
            succeeded(tasks[0]),
            failed(tasks[0]),
            succeeded(tasks[1]),
            succeeded(tasks[1]),
        ]
        assert repository.record_results("job", batch) == 2
        assert counters(repository) == (2, 0)
        assert_books_agree(repository)

    def test_results_of_unknown_tasks_are_not_counted_and_leave_no_rows(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = started(repository, clock, 1)
        unknown = TaskResult("job", "unknown", True)
        assert repository.record_results("job", [unknown, succeeded(tasks[0]), unknown]) == 1
        assert repository.record_results("job", [unknown]) == 0
        assert counters(repository) == (1, 0)
        assert len(rows(repository)) == 1

    def test_no_results_are_counted_as_none(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        started(repository, clock)
        assert repository.record_results("job", []) == 0

    def test_a_batch_may_be_larger_than_any_transaction(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = sealed(repository, clock, MANY)
        repository.record_results("job", [succeeded(t) for t in tasks[:40]])
        results = [failed(t) if n % 5 == 0 else succeeded(t) for n, t in enumerate(tasks)]
        twice = [*results, *results[:60]]
        assert repository.record_results("job", twice) == MANY - 40
        assert sum(counters(repository)) == MANY
        assert job_of(repository).remaining_tasks == 0
        assert_books_agree(repository)

    # -- one at a time, as the seed has it

    def test_increments_of_a_task_count_it_once(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = started(repository, clock, 3)
        for _ in range(2):
            repository.increment_completed_tasks("job", tasks[0].task_id)
            repository.increment_failed_tasks("job", tasks[1].task_id)
            repository.increment_failed_tasks("job", tasks[0].task_id)
            repository.increment_completed_tasks("job", "unknown")
        assert counters(repository) == (1, 1)
        assert_books_agree(repository)

    def test_increments_without_a_task_count_each_time(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        started(repository, clock, 0)
        for _ in range(3):
            repository.increment_completed_tasks("job")
        for _ in range(2):
            repository.increment_failed_tasks("job")
        repository.set_total_tasks("job", 5)
        assert counters(repository) == (3, 2)
        assert job_of(repository).all_counted
        assert len(rows(repository)) == 5
        assert_books_agree(repository)

    # -- when counting is over, or has not begun

    @pytest.mark.parametrize("state", ["processing", "decided", "given up", "ended", "settled"])
    def test_a_job_that_is_not_downloading_or_is_decided_counts_nothing(
        self, repository: JobStateRepository, clock: ManualClock, state: str
    ) -> None:
        tasks = tasks_of("job", 3)
        repository.save(new_job(clock))
        repository.add_tasks("job", tasks)
        if state != "processing":
            repository.update_job_status("job", JobStatus.DOWNLOADING)
            repository.record_results("job", [succeeded(tasks[0])])
        if state == "decided":
            repository.set_total_tasks("job", 1)
            assert repository.claim_outcome("job")
        if state in ("given up", "settled"):
            assert repository.give_up("job", GIVEN_UP)
        if state == "ended":
            repository.update_job_status("job", JobStatus.FAILED)
        if state == "settled":
            assert repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        self.assert_closed(repository)

    def assert_closed(self, repository: JobStateRepository) -> None:
        was, before = job_of(repository), rows(repository)
        with pytest.raises(JobClosed):
            repository.record_results("job", [succeeded(task) for task in before])
        for task_id in (None, before[-1].task_id):
            with pytest.raises(JobClosed):
                repository.increment_completed_tasks("job", task_id)
            with pytest.raises(JobClosed):
                repository.increment_failed_tasks("job", task_id)
        assert job_of(repository) == was
        assert rows(repository) == before

    def test_a_batch_of_any_size_for_a_decided_job_leaves_no_trace(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = started(repository, clock, MANY)
        repository.give_up("job", GIVEN_UP)
        with pytest.raises(JobClosed):
            repository.record_results("job", [succeeded(task) for task in tasks])
        assert counters(repository) == (0, 0)
        assert repository.tasks("job", status=TaskStatus.COMPLETED) == []

    # -- times

    def test_every_write_moves_updated_at(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """R004-060."""
        tasks = sealed(repository, clock, 2)
        clock.advance(1.0)
        repository.record_results("job", [succeeded(tasks[0])])
        assert job_of(repository).updated_at == clock.time()
        clock.advance(1.0)
        repository.increment_failed_tasks("job", tasks[1].task_id)
        assert job_of(repository).updated_at == clock.time()

    def test_of_results_only_those_that_count_move_last_progress_at(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """JB-17, I-JB-7."""
        repository.save(new_job(clock))
        begun = clock.time()
        tasks = tasks_of("job", 2)
        for write in (
            lambda: repository.add_tasks("job", tasks),
            lambda: repository.update_job_status("job", JobStatus.DOWNLOADING),
            lambda: repository.set_total_tasks("job", 2),
            lambda: repository.record_results("job", [TaskResult("job", "unknown", True)]),
        ):
            clock.advance(1.0)
            write()
            assert job_of(repository).last_progress_at == begun
        clock.advance(1.0)
        repository.record_results("job", [failed(tasks[0])])
        progressed = clock.time()
        clock.advance(1.0)
        repository.record_results("job", [succeeded(tasks[0])])
        assert job_of(repository).last_progress_at == progressed

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_an_active_job_may_be_said_to_move(
        self, repository: JobStateRepository, clock: ManualClock, status: JobStatus
    ) -> None:
        repository.save(new_job(clock))
        repository.update_job_status("job", status)
        was = job_of(repository)
        clock.advance(1.0)
        repository.note_progress("job")
        now = clock.time()
        assert job_of(repository) == replace(was, last_progress_at=now, updated_at=now)

    def test_a_job_that_ended_does_not_move(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        started(repository, clock)
        repository.update_job_status("job", JobStatus.FAILED)
        was = job_of(repository)
        clock.advance(1.0)
        repository.note_progress("job")
        assert job_of(repository) == was

    def test_callbacks_are_no_progress(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        job = decided(repository, clock)
        clock.advance(1.0)
        repository.begin_callback("job", again_after_seconds=5.0)
        repository.end_callback("job", in_doubt=False)
        repository.settle("job", JobStatus.COMPLETED, None)
        ended = job_of(repository)
        assert ended.callback.state is CallbackState.SENT
        assert ended.last_progress_at == job.last_progress_at
