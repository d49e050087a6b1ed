"""Tasks are stored once and listed in order, a page at a time."""

from dataclasses import replace

import pytest

from contracts.jobs.support import (
    GIVEN_UP,
    MANY,
    assert_counters_match_rows,
    make_failure,
    make_success,
    make_tasks,
    new_job,
    read_job,
    read_rows,
    start_job,
    start_sealed_job,
)
from holdfast.exports.errors import AlreadySealed, JobClosed
from holdfast.exports.model import ExportTask, JobStatus, TaskStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock


class ListingPromises:
    """The promises about task rows (JB-15, JB-16)."""

    def test_a_task_comes_back_as_it_was_added(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        full = ExportTask.create(
            "job", "https://a.example/ä?x=1&y", "ä/b c", "sha256:00", 2**40
        )
        bare = ExportTask.create("job", "https://a.example/", "k")
        repository.add_tasks("job", (task for task in (full, bare)))
        assert sorted(read_rows(repository), key=lambda t: t.key) == [bare, full]

    def test_adding_tasks_moves_updated_at(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        clock.advance(1.0)
        repository.add_tasks("job", make_tasks("job", 1))
        assert read_job(repository).updated_at == clock.time()

    def test_listing_a_job_twice_keeps_what_is_finished(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 3)
        repository.record_results("job", [make_success(tasks[0]), make_failure(tasks[1])])
        before = read_rows(repository)
        repository.add_tasks("job", [*tasks, *tasks])
        assert read_rows(repository) == before
        assert_counters_match_rows(repository)

    def test_tasks_are_stored_as_pending_even_with_another_status(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """A finished row that was not counted would make the job wait for ever."""
        repository.save(new_job(clock))
        [task] = make_tasks("job", 1)
        repository.add_tasks("job", [replace(task, status=TaskStatus.COMPLETED)])
        assert read_rows(repository) == [task]

    def test_more_tasks_than_a_transaction_takes_are_all_stored(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        tasks = make_tasks("job", MANY)
        repository.add_tasks("job", tasks[100:180])
        repository.add_tasks("job", tasks)
        assert repository.tasks("job") == tasks

    def test_a_sealed_job_takes_no_tasks_not_even_its_own(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_sealed_job(repository, clock, 3)
        before = read_job(repository)
        for more in (
            tasks,
            make_tasks("job", 1, first=100),
            make_tasks("job", MANY, first=100),
        ):
            with pytest.raises(AlreadySealed):
                repository.add_tasks("job", more)
        assert read_job(repository) == before
        assert read_rows(repository) == tasks

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_job_whose_outcome_is_decided_takes_no_tasks(
        self, repository: JobStateRepository, clock: ManualClock, ended: bool
    ) -> None:
        tasks = start_job(repository, clock, 3)
        repository.give_up("job", GIVEN_UP)
        if ended:
            repository.settle("job", JobStatus.FAILED, GIVEN_UP)
        with pytest.raises(JobClosed):
            repository.add_tasks("job", make_tasks("job", 1, first=100))
        assert read_rows(repository) == tasks

    # -- pages

    def test_pages_begin_behind_the_last_task_of_the_one_before(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 5)
        assert repository.tasks("job", limit=2) == tasks[:2]
        assert repository.tasks("job", limit=2, after=tasks[1].task_id) == tasks[2:4]
        assert repository.tasks("job", limit=2, after=tasks[3].task_id) == tasks[4:]
        assert repository.tasks("job", limit=5) == tasks
        assert repository.tasks("job", after=tasks[4].task_id) == []

    def test_a_page_may_begin_behind_a_task_that_is_not_there(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 3)
        assert repository.tasks("job", after="0") == tasks
        assert repository.tasks("job", after=tasks[0].task_id + "x") == tasks[1:]
        assert repository.tasks("job", after="zzz") == []

    def test_a_status_is_asked_for_across_pages(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        tasks = start_job(repository, clock, 9)
        repository.record_results("job", [make_success(task) for task in tasks[1::3]])
        repository.record_results("job", [make_failure(task) for task in tasks[2::3]])
        pending = [task.task_id for task in tasks[0::3]]
        first = repository.tasks("job", status=TaskStatus.PENDING, limit=2)
        assert [task.task_id for task in first] == pending[:2]
        last = repository.tasks("job", status=TaskStatus.PENDING, limit=2, after=pending[1])
        assert [task.task_id for task in last] == pending[2:]
        for status, expected in (
            (TaskStatus.COMPLETED, tasks[1::3]),
            (TaskStatus.FAILED, tasks[2::3]),
        ):
            listed = repository.tasks("job", status=status)
            assert [task.task_id for task in listed] == [task.task_id for task in expected]

    def test_few_tasks_of_a_status_are_found_among_many(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        """A page of the store may contain no requested task and still not be the last one."""
        tasks = start_job(repository, clock, MANY)
        wanted = [tasks[-1], tasks[MANY // 2]]
        repository.record_results("job", [make_failure(task) for task in wanted])
        listed = repository.tasks("job", status=TaskStatus.FAILED, limit=2)
        assert [task.task_id for task in listed] == [
            tasks[MANY // 2].task_id,
            tasks[-1].task_id,
        ]

    def test_a_job_without_tasks_has_none(
        self, repository: JobStateRepository, clock: ManualClock
    ) -> None:
        repository.save(new_job(clock))
        assert repository.tasks("job") == []
