"""Promises about sealing a job and counting its results."""

from dataclasses import replace

import pytest

from contracts.jobs.support import (
    BROKEN,
    GIVEN_UP,
    MANY,
    JobPromises,
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


class SealPromises(JobPromises):
    """The promises about the number of tasks (JB-03, JB-04, JB-05)."""

    @pytest.mark.requirement("R004-056", "R004-060", "R004-192")
    def test_the_seal_says_how_many_tasks_there_are(self) -> None:
        start_job(self.jobs, self.clock, 3)
        assert not read_job(self.jobs).sealed
        self.clock.advance(1.0)
        self.jobs.set_total_tasks("job", 3)
        job = read_job(self.jobs)
        assert (job.sealed, job.state.total_tasks, job.remaining_tasks) == (True, 3, 3)
        assert job.updated_at == self.clock.time()

    @pytest.mark.requirement("R004-192")
    def test_the_same_number_again_changes_nothing(self) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, 3)
        self.jobs.record_results("job", [make_success(tasks[0])])
        with self.unchanged():
            self.clock.advance(1.0)
            self.jobs.set_total_tasks("job", 3)

    @pytest.mark.requirement("R004-056")
    @pytest.mark.parametrize("other", [0, 2, 4])
    def test_another_number_is_refused(self, other: int) -> None:
        start_sealed_job(self.jobs, self.clock, 3)
        with self.unchanged(), pytest.raises(AlreadySealed):
            self.jobs.set_total_tasks("job", other)

    @pytest.mark.requirement("R004-115")
    def test_results_may_come_before_the_seal(self) -> None:
        tasks = start_job(self.jobs, self.clock, 3)
        self.jobs.record_results("job", [make_success(task) for task in tasks])
        assert read_job(self.jobs).remaining_tasks == -3
        assert not read_job(self.jobs).all_counted
        assert self.jobs.claim_outcome("job") is None
        self.jobs.set_total_tasks("job", 3)
        assert read_job(self.jobs).remaining_tasks == 0
        assert read_job(self.jobs).all_counted
        assert_counters_match_rows(self.jobs)

    def test_a_job_may_be_sealed_before_it_begins(self) -> None:
        self.jobs.save(new_job(self.clock))
        self.jobs.set_total_tasks("job", 2)
        self.jobs.update_job_status("job", JobStatus.DOWNLOADING)
        assert (read_job(self.jobs).sealed, read_job(self.jobs).remaining_tasks) == (True, 2)

    def test_a_job_sealed_with_no_tasks_takes_no_other_number(self) -> None:
        start_job(self.jobs, self.clock, 0)
        self.jobs.set_total_tasks("job", 0)
        job = read_job(self.jobs)
        assert (job.sealed, job.remaining_tasks, job.all_counted) == (True, 0, True)
        with pytest.raises(AlreadySealed):
            self.jobs.set_total_tasks("job", 1)

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_job_whose_outcome_is_decided_is_not_sealed(self, ended: bool) -> None:
        start_job(self.jobs, self.clock, 3)
        self.jobs.give_up("job", GIVEN_UP)
        if ended:
            self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP)
        with self.unchanged(), pytest.raises(JobClosed):
            self.jobs.set_total_tasks("job", 3)


class CountingPromises(JobPromises):
    """The promises about counters.

    (JB-01, JB-30).
    """

    @pytest.mark.requirement("R004-057", "R004-058", "R004-103", "R004-111")
    def test_results_finish_rows_and_are_counted(self) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, 3)
        assert (
            self.jobs.record_results(
                "job", [make_success(tasks[0], 11), make_failure(tasks[1])]
            )
            == 2
        )
        assert read_counters(self.jobs) == (1, 1)
        done, broken, waiting = read_rows(self.jobs)
        assert (done.status, done.bytes_processed) == (TaskStatus.COMPLETED, 11)
        assert (broken.status, broken.error) == (TaskStatus.FAILED, BROKEN)
        assert waiting == tasks[2]
        assert read_job(self.jobs).remaining_tasks == 1
        assert_counters_match_rows(self.jobs)

    @pytest.mark.requirement("R004-103")
    def test_a_result_reported_again_is_not_counted_again(self) -> None:
        tasks = start_job(self.jobs, self.clock)
        assert self.jobs.record_results("job", [make_success(tasks[0])]) == 1
        assert self.jobs.record_results("job", [make_success(tasks[0])]) == 0
        assert self.jobs.record_results("job", [make_success(t) for t in tasks]) == 2
        assert read_counters(self.jobs) == (3, 0)

    def test_the_first_result_of_a_task_stays(self) -> None:
        tasks = start_job(self.jobs, self.clock, 2)
        self.jobs.record_results("job", [make_success(tasks[0]), make_failure(tasks[1])])
        before = read_rows(self.jobs)
        assert (
            self.jobs.record_results("job", [make_failure(tasks[0]), make_success(tasks[1])])
            == 0
        )
        assert read_counters(self.jobs) == (1, 1)
        assert read_rows(self.jobs) == before

    def test_a_task_named_twice_in_one_batch_is_counted_once(self) -> None:
        tasks = start_job(self.jobs, self.clock, 3)
        batch = [
            make_success(tasks[0]),
            make_failure(tasks[0]),
            make_success(tasks[1]),
            make_success(tasks[1]),
            make_failure(tasks[2]),
            make_success(tasks[2]),
        ]
        assert self.jobs.record_results("job", batch) == 3
        assert read_counters(self.jobs) == (2, 1)
        assert read_rows(self.jobs)[2].status is TaskStatus.FAILED  # the first result stays
        assert_counters_match_rows(self.jobs)

    def test_a_result_that_names_another_job_is_not_counted(self) -> None:
        tasks = start_job(self.jobs, self.clock, 1)
        foreign = replace(make_success(tasks[0]), job_id="another")
        assert self.jobs.record_results("job", [foreign]) == 0
        assert read_counters(self.jobs) == (0, 0)

    def test_results_of_unknown_tasks_are_not_counted_and_leave_no_rows(self) -> None:
        tasks = start_job(self.jobs, self.clock, 1)
        unknown = TaskResult("job", "unknown", True)
        assert self.jobs.record_results("job", [unknown, make_success(tasks[0]), unknown]) == 1
        assert self.jobs.record_results("job", [unknown]) == 0
        assert read_counters(self.jobs) == (1, 0)
        assert len(read_rows(self.jobs)) == 1

    def test_a_batch_may_be_larger_than_any_transaction(self) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, MANY)
        self.jobs.record_results("job", [make_success(t) for t in tasks[:40]])
        results = [
            make_failure(t) if n % 5 == 0 else make_success(t) for n, t in enumerate(tasks)
        ]
        twice = [*results, *results[:60]]
        assert self.jobs.record_results("job", twice) == MANY - 40
        assert sum(read_counters(self.jobs)) == MANY
        assert read_job(self.jobs).remaining_tasks == 0
        assert_counters_match_rows(self.jobs)

    # -- the increments of the seed

    @pytest.mark.requirement("R004-109", "R004-111", "R004-190", "R004-191")
    def test_increments_of_a_task_count_it_once(self) -> None:
        tasks = start_job(self.jobs, self.clock, 3)
        for _ in range(2):
            self.jobs.increment_completed_tasks("job", tasks[0].task_id)
            self.jobs.increment_failed_tasks("job", tasks[1].task_id)
            self.jobs.increment_failed_tasks("job", tasks[0].task_id)
            self.jobs.increment_completed_tasks("job", "unknown")
        assert read_counters(self.jobs) == (1, 1)
        assert_counters_match_rows(self.jobs)

    @pytest.mark.requirement("R004-190", "R004-191")
    def test_increments_without_a_task_count_each_time(self) -> None:
        start_job(self.jobs, self.clock, 0)
        for _ in range(3):
            self.jobs.increment_completed_tasks("job")
        for _ in range(2):
            self.jobs.increment_failed_tasks("job")
        self.jobs.set_total_tasks("job", 5)
        assert read_counters(self.jobs) == (3, 2)
        assert read_job(self.jobs).all_counted
        assert len(read_rows(self.jobs)) == 5
        assert_counters_match_rows(self.jobs)

    # -- when counting is over, or has not begun

    @pytest.mark.parametrize("state", ["processing", "decided", "given up", "ended", "settled"])
    def test_a_job_that_is_not_downloading_or_is_decided_counts_nothing(
        self, state: str
    ) -> None:
        tasks = make_tasks("job", 3)
        self.jobs.save(new_job(self.clock))
        self.jobs.add_tasks("job", tasks)
        if state != "processing":
            self.jobs.update_job_status("job", JobStatus.DOWNLOADING)
            self.jobs.record_results("job", [make_success(tasks[0])])
        if state == "decided":
            self.jobs.set_total_tasks("job", 1)
            assert self.jobs.claim_outcome("job")
        if state in ("given up", "settled"):
            assert self.jobs.give_up("job", GIVEN_UP)
        if state == "ended":
            self.jobs.update_job_status("job", JobStatus.FAILED)
        if state == "settled":
            assert self.jobs.settle("job", JobStatus.FAILED, GIVEN_UP)
        self.assert_closed()

    def assert_closed(self) -> None:
        """Check that the job counts nothing."""
        job, tasks = read_job(self.jobs), read_rows(self.jobs)
        with pytest.raises(JobClosed):
            self.jobs.record_results("job", [make_success(task) for task in tasks])
        for task_id in (None, tasks[-1].task_id):
            with pytest.raises(JobClosed):
                self.jobs.increment_completed_tasks("job", task_id)
            with pytest.raises(JobClosed):
                self.jobs.increment_failed_tasks("job", task_id)
        assert read_job(self.jobs) == job
        assert read_rows(self.jobs) == tasks

    def test_a_batch_of_any_size_for_a_decided_job_leaves_no_trace(self) -> None:
        tasks = start_job(self.jobs, self.clock, MANY)
        self.jobs.give_up("job", GIVEN_UP)
        with pytest.raises(JobClosed):
            self.jobs.record_results("job", [make_success(task) for task in tasks])
        assert read_counters(self.jobs) == (0, 0)
        assert self.jobs.tasks("job", status=TaskStatus.COMPLETED) == []

    # -- times

    @pytest.mark.requirement("R004-060")
    def test_every_write_moves_updated_at(self) -> None:
        tasks = start_sealed_job(self.jobs, self.clock, 2)
        self.clock.advance(1.0)
        self.jobs.record_results("job", [make_success(tasks[0])])
        assert read_job(self.jobs).updated_at == self.clock.time()
        self.clock.advance(1.0)
        self.jobs.increment_failed_tasks("job", tasks[1].task_id)
        assert read_job(self.jobs).updated_at == self.clock.time()

    def test_of_results_only_those_that_count_move_last_progress_at(self) -> None:
        """(JB-17)"""
        self.jobs.save(new_job(self.clock))
        begun = self.clock.time()
        tasks = make_tasks("job", 2)
        for write in (
            lambda: self.jobs.add_tasks("job", tasks),
            lambda: self.jobs.update_job_status("job", JobStatus.DOWNLOADING),
            lambda: self.jobs.set_total_tasks("job", 2),
            lambda: self.jobs.record_results("job", [TaskResult("job", "unknown", True)]),
        ):
            self.clock.advance(1.0)
            write()
            assert read_job(self.jobs).last_progress_at == begun
        self.clock.advance(1.0)
        self.jobs.record_results("job", [make_failure(tasks[0])])
        progressed = self.clock.time()
        self.clock.advance(1.0)
        self.jobs.record_results("job", [make_success(tasks[0])])
        assert read_job(self.jobs).last_progress_at == progressed

    @pytest.mark.parametrize("status", [JobStatus.PROCESSING, JobStatus.DOWNLOADING])
    def test_noting_progress_of_an_active_job_moves_last_progress_at(
        self, status: JobStatus
    ) -> None:
        self.jobs.save(new_job(self.clock))
        self.jobs.update_job_status("job", status)
        before = read_job(self.jobs)
        self.clock.advance(1.0)
        self.jobs.note_progress("job")
        now = self.clock.time()
        assert read_job(self.jobs) == replace(before, last_progress_at=now, updated_at=now)

    def test_noting_progress_of_an_ended_job_changes_nothing(self) -> None:
        start_job(self.jobs, self.clock)
        self.jobs.update_job_status("job", JobStatus.FAILED)
        with self.unchanged():
            self.clock.advance(1.0)
            self.jobs.note_progress("job")

    def test_callbacks_do_not_count_as_progress(self) -> None:
        job = decide_job(self.jobs, self.clock)
        self.clock.advance(1.0)
        self.jobs.begin_callback("job", again_after_seconds=5.0)
        self.jobs.end_callback("job", in_doubt=False)
        self.jobs.settle("job", JobStatus.COMPLETED, None)
        ended = read_job(self.jobs)
        assert ended.callback.state is CallbackState.SENT
        assert ended.last_progress_at == job.last_progress_at
