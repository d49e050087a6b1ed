"""Promises about sealing a job and counting its results."""

from dataclasses import replace

import pytest

from contracts.jobs.support import (
    BROKEN,
    GIVEN_UP,
    MANY,
    assert_counters_match_rows,
    decide_job,
    make_failure,
    make_success,
    make_tasks,
    new_job,
    read_counters,
    read_job,
    read_rows,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import AlreadySealed, JobClosed
from holdfast.exports.model import CallbackState, JobStatus, TaskResult, TaskStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock


class SealPromises:
    """The promises about the number of tasks (JB-03, JB-04, JB-05)."""

    @pytest.mark.requirement("R004-056", "R004-060", "R004-192")
    def test_the_seal_says_how_many_tasks_there_are(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock, 3)
        assert not read_job(repository).sealed
        clock.advance(1.0)
        repository.set_total_tasks("job", 3)
        job = read_job(repository)
        assert (job.sealed, job.state.total_tasks, job.remaining_tasks) == (True, 3, 3)
        assert job.updated_at == clock.time()

    @pytest.mark.requirement("R004-192")
    def test_the_same_number_again_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, 3)
        repository.record_results("job", [make_success(tasks[0])])
        before = read_job(repository)
        clock.advance(1.0)
        repository.set_total_tasks("job", 3)
        assert read_job(repository) == before

    @pytest.mark.requirement("R004-056")
    @pytest.mark.parametrize("other", [0, 2, 4])
    def test_another_number_is_refused(
        self, repository: JobStateRepository, clock: ManualClock, other: int
    ) -> None:
        start_sealed_job(repository, clock, 3)
        before = read_job(repository)
        with pytest.raises(AlreadySealed):
            repository.set_total_tasks("job", other)
        assert read_job(repository) == before

    @pytest.mark.requirement("R004-115")
    def test_results_may_come_before_the_seal(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 3)
        repository.record_results("job", [make_success(task) for task in tasks])
        assert read_job(repository).remaining_tasks == -3
        assert not read_job(repository).all_counted
        assert repository.claim_outcome("job") is None
        repository.set_total_tasks("job", 3)
        assert read_job(repository).remaining_tasks == 0
        assert read_job(repository).all_counted
        assert_counters_match_rows(repository)

    def test_a_job_may_be_sealed_before_it_begins(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        repository.set_total_tasks("job", 2)
        repository.update_job_status("job", JobStatus.DOWNLOADING)
        assert (read_job(repository).sealed, read_job(repository).remaining_tasks) == (True, 2)

    def test_a_job_sealed_with_no_tasks_takes_no_other_number(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock, 0)
        repository.set_total_tasks("job", 0)
        job = read_job(repository)
        assert (job.sealed, job.remaining_tasks, job.all_counted) == (True, 0, True)
        with pytest.raises(AlreadySealed):
            repository.set_total_tasks("job", 1)

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_job_whose_outcome_is_decided_is_not_sealed(
        self, repository: JobStateRepository, clock: ManualClock, ended: bool
    ) -> None:
        start_job(repository, clock, 3)
        repository.give_up("job", GIVEN_UP)
        if ended:
            repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        before = read_job(repository)
        with pytest.raises(JobClosed):
            repository.set_total_tasks("job", 3)
        assert read_job(repository) == before


class CountingPromises:
    """The promises about counters.

    (JB-01, JB-30).
    """

    @pytest.mark.requirement("R004-057", "R004-058", "R004-103", "R004-111")
    def test_results_finish_rows_and_are_counted(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, 3)
        assert (
            repository.record_results(
                "job", [make_success(tasks[0], 11), make_failure(tasks[1])]
            )
            == 2
        )
        assert read_counters(repository) == (1, 1)
        done, broken, waiting = read_rows(repository)
        assert (done.status, done.bytes_processed) == (TaskStatus.COMPLETED, 11)
        assert (broken.status, broken.error) == (TaskStatus.FAILED, BROKEN)
        assert waiting == tasks[2]
        assert read_job(repository).remaining_tasks == 1
        assert_counters_match_rows(repository)

    @pytest.mark.requirement("R004-103")
    def test_a_result_reported_again_is_not_counted_again(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock)
        assert repository.record_results("job", [make_success(tasks[0])]) == 1
        assert repository.record_results("job", [make_success(tasks[0])]) == 0
        assert repository.record_results("job", [make_success(t) for t in tasks]) == 2
        assert read_counters(repository) == (3, 0)

    def test_the_first_result_of_a_task_stays(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 2)
        repository.record_results("job", [make_success(tasks[0]), make_failure(tasks[1])])
        before = read_rows(repository)
        assert (
            repository.record_results("job", [make_failure(tasks[0]), make_success(tasks[1])])
            == 0
        )
        assert read_counters(repository) == (1, 1)
        assert read_rows(repository) == before

    def test_a_task_named_twice_in_one_batch_is_counted_once(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 3)
        batch = [
            make_success(tasks[0]),
            make_failure(tasks[0]),
            make_success(tasks[1]),
            make_success(tasks[1]),
            make_failure(tasks[2]),
            make_success(tasks[2]),
        ]
        assert repository.record_results("job", batch) == 3
        assert read_counters(repository) == (2, 1)
        assert read_rows(repository)[2].status is TaskStatus.FAILED  # the first result stays
        assert_counters_match_rows(repository)

    def test_a_result_that_names_another_job_is_not_counted(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 1)
        foreign = replace(make_success(tasks[0]), job_id="another")
        assert repository.record_results("job", [foreign]) == 0
        assert read_counters(repository) == (0, 0)

    def test_results_of_unknown_tasks_are_not_counted_and_leave_no_rows(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 1)
        unknown = TaskResult("job", "unknown", True)
        assert repository.record_results("job", [unknown, make_success(tasks[0]), unknown]) == 1
        assert repository.record_results("job", [unknown]) == 0
        assert read_counters(repository) == (1, 0)
        assert len(read_rows(repository)) == 1

    def test_a_batch_may_be_larger_than_any_transaction(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, MANY)
        repository.record_results("job", [make_success(t) for t in tasks[:40]])
        results = [
            make_failure(t) if n % 5 == 0 else make_success(t) for n, t in enumerate(tasks)
        ]
        twice = [*results, *results[:60]]
        assert repository.record_results("job", twice) == MANY - 40
        assert sum(read_counters(repository)) == MANY
        assert read_job(repository).remaining_tasks == 0
        assert_counters_match_rows(repository)

    # -- the increments of the seed

    @pytest.mark.requirement("R004-109", "R004-111", "R004-190", "R004-191")
    def test_increments_of_a_task_count_it_once(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 3)
        for _ in range(2):
            repository.increment_completed_tasks("job", tasks[0].task_id)
            repository.increment_failed_tasks("job", tasks[1].task_id)
            repository.increment_failed_tasks("job", tasks[0].task_id)
            repository.increment_completed_tasks("job", "unknown")
        assert read_counters(repository) == (1, 1)
        assert_counters_match_rows(repository)

    @pytest.mark.requirement("R004-190", "R004-191")
    def test_increments_without_a_task_count_each_time(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock, 0)
        for _ in range(3):
            repository.increment_completed_tasks("job")
        for _ in range(2):
            repository.increment_failed_tasks("job")
        repository.set_total_tasks("job", 5)
        assert read_counters(repository) == (3, 2)
        assert read_job(repository).all_counted
        assert len(read_rows(repository)) == 5
        assert_counters_match_rows(repository)

    # -- when counting is over, or has not begun

    @pytest.mark.parametrize("state", ["processing", "decided", "given up", "ended", "settled"])
    def test_a_job_that_is_not_downloading_or_is_decided_counts_nothing(
        self, repository: JobStateRepository, clock: ManualClock, state: str
    ) -> None:
        tasks = make_tasks("job", 3)
        repository.save(new_job(clock))
        repository.add_tasks("job", tasks)
        if state != "processing":
            repository.update_job_status("job", JobStatus.DOWNLOADING)
            repository.record_results("job", [make_success(tasks[0])])
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
        """Check that the job counts nothing."""
        job, tasks = read_job(repository), read_rows(repository)
        with pytest.raises(JobClosed):
            repository.record_results("job", [make_success(task) for task in tasks])
        for task_id in (None, tasks[-1].task_id):
            with pytest.raises(JobClosed):
                repository.increment_completed_tasks("job", task_id)
            with pytest.raises(JobClosed):
                repository.increment_failed_tasks("job", task_id)
        assert read_job(repository) == job
        assert read_rows(repository) == tasks

    def test_a_batch_of_any_size_for_a_decided_job_leaves_no_trace(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, MANY)
        repository.give_up("job", GIVEN_UP)
        with pytest.raises(JobClosed):
            repository.record_results("job", [make_success(task) for task in tasks])
        assert read_counters(repository) == (0, 0)
        assert repository.tasks("job", status=TaskStatus.COMPLETED) == []

    # -- times

    @pytest.mark.requirement("R004-060")
    def test_every_write_moves_updated_at(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, 2)
        clock.advance(1.0)
        repository.record_results("job", [make_success(tasks[0])])
        assert read_job(repository).updated_at == clock.time()
        clock.advance(1.0)
        repository.increment_failed_tasks("job", tasks[1].task_id)
        assert read_job(repository).updated_at == clock.time()

    def test_of_results_only_those_that_count_move_last_progress_at(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """(JB-17)"""
        repository.save(new_job(clock))
        begun = clock.time()
        tasks = make_tasks("job", 2)
        for write in (
            lambda: repository.add_tasks("job", tasks),
            lambda: repository.update_job_status("job", JobStatus.DOWNLOADING),
            lambda: repository.set_total_tasks("job", 2),
            lambda: repository.record_results("job", [TaskResult("job", "unknown", True)]),
        ):
            clock.advance(1.0)
            write()
            assert read_job(repository).last_progress_at == begun
        clock.advance(1.0)
        repository.record_results("job", [make_failure(tasks[0])])
        progressed = clock.time()
        clock.advance(1.0)
        repository.record_results("job", [make_success(tasks[0])])
        assert read_job(repository).last_progress_at == progressed

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_noting_progress_of_an_active_job_moves_last_progress_at(
        self, repository: JobStateRepository, clock: ManualClock, status: JobStatus
    ) -> None:
        repository.save(new_job(clock))
        repository.update_job_status("job", status)
        before = read_job(repository)
        clock.advance(1.0)
        repository.note_progress("job")
        now = clock.time()
        assert read_job(repository) == replace(before, last_progress_at=now, updated_at=now)

    def test_noting_progress_of_an_ended_job_changes_nothing(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        start_job(repository, clock)
        repository.update_job_status("job", JobStatus.FAILED)
        before = read_job(repository)
        clock.advance(1.0)
        repository.note_progress("job")
        assert read_job(repository) == before

    def test_callbacks_do_not_count_as_progress(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        job = decide_job(repository, clock)
        clock.advance(1.0)
        repository.begin_callback("job", again_after_seconds=5.0)
        repository.end_callback("job", in_doubt=False)
        repository.settle("job", JobStatus.COMPLETED, None)
        ended = read_job(repository)
        assert ended.callback.state is CallbackState.SENT
        assert ended.last_progress_at == job.last_progress_at
