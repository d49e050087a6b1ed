"""The tasks of a running job, shared by two threads, and its progress between results."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from contracts.jobs.support import make_success, make_tasks, read_job, start_sealed_job
from holdfast.exports.dispatcher import PAGE_SIZE, ActiveJob, TaskDispatcher
from holdfast.exports.model import ExportJob, ExportTask, JobStatus
from holdfast.exports.tracker import JobTracker
from holdfast.testing import ManualClock, MemoryJobs
from support.exports.inline_pool import InlinePool


def test_a_task_that_was_given_back_is_the_next_one() -> None:
    active = ActiveJob("j")
    active.add_page(make_tasks("j", 3))
    first = active.take()
    assert first is not None
    active.give_back(first.task_id)
    assert active.take() == first
    assert not active.is_exhausted


def test_no_task_is_taken_from_a_closed_job() -> None:
    active = ActiveJob("j")
    active.add_page(make_tasks("j", 3))
    taken = active.take()
    assert taken is not None
    active.close()
    assert active.take() is None
    active.finish(make_success(taken))
    assert len(active.wait_for_results(0)) == 1  # a running task may still finish


def start_waiting(active: ActiveJob, threads: ThreadPoolExecutor) -> "Future[int]":
    """Wait for results in the job's thread. Return how many are to be counted together."""
    return threads.submit(lambda: len(active.wait_for_results(60.0)))


def test_results_wait_only_for_a_moment_for_others() -> None:
    active = ActiveJob("j", gather_seconds=0.2)
    active.add_page(make_tasks("j", 4))
    taken = list(iter(active.take, None))
    for task in taken[:3]:
        active.finish(make_success(task))
    began = time.monotonic()
    assert len(active.wait_for_results(60.0)) == 3
    assert 0.19 < time.monotonic() - began < 30.0


def test_the_last_result_and_a_full_transaction_wait_for_no_other() -> None:
    for tasks, finished in ((1, 1), (2, 2), (999, 990)):
        active = ActiveJob("j", gather_seconds=60.0)
        active.add_page(make_tasks("j", tasks))
        taken = list(iter(active.take, None))
        with ThreadPoolExecutor(1) as threads:
            active.finish(make_success(taken[0]))
            count = start_waiting(active, threads)
            time.sleep(0.2)  # it waits for the others now
            for task in taken[1:finished]:
                active.finish(make_success(task))
            assert count.result(30.0) == finished


def test_results_of_tasks_that_do_not_run_are_ignored() -> None:
    active = ActiveJob("j")
    listed = make_tasks("j", 1)
    active.add_page(listed)
    active.finish(make_success(listed[0]))
    assert not active.wait_for_results(0)


def test_tasks_wait_while_too_many_results_are_not_counted() -> None:
    """An unavailable store must not fill the memory (JB-32)."""
    active = ActiveJob("j")
    listed = make_tasks("j", 6000)
    active.add_page(listed)
    taken = 0
    while (task := active.take()) is not None:
        active.finish(make_success(task))
        taken += 1
    assert taken == 5000
    active.remove_counted(active.wait_for_results(0))
    assert active.take() is not None


def test_the_next_page_is_requested_before_the_last_one_is_empty() -> None:
    active = ActiveJob("j")
    assert active.needs_tasks
    active.add_page(make_tasks("j", PAGE_SIZE))
    assert not active.needs_tasks
    for _ in range(PAGE_SIZE * 3 // 4):
        active.take()
    assert active.needs_tasks
    active.add_page(make_tasks("j", 1))
    assert not active.needs_tasks  # a page that is not full is the last one


def test_a_large_file_that_arrives_is_progress() -> None:
    """A job is stalled only if no bytes come in (JB-17)."""
    clock = ManualClock()
    jobs = MemoryJobs(clock=clock)
    start_sealed_job(jobs, clock, 1, job_id="j")
    dispatcher = TaskDispatcher(
        jobs, JobTracker(jobs, None), lambda task: {}, progress_seconds=30, clock=clock
    )
    pool = InlinePool(dispatcher, lambda task: None)
    noted: list[float] = []
    lost = Event()

    def should_leave() -> bool:
        """Advance the clock once per step; bytes come only in the first steps."""
        clock.advance(31)
        pool.bytes += 1000 if len(noted) < 3 else 0
        noted.append(read_job(jobs, "j").last_progress_at)
        if len(noted) == 8:
            lost.set()
        return False

    dispatcher.run(read_job(jobs, "j"), lost=lost, should_leave=should_leave)
    assert noted[0] < noted[1] < noted[2] < noted[3]
    assert noted[5] == noted[6] == noted[7]


class LateIndex(MemoryJobs):
    """Lists nothing at the first call."""

    calls = 0

    def tasks(self, job_id: str, **options: Any) -> list[ExportTask]:
        self.calls += 1
        return super().tasks(job_id, **options) if self.calls > 1 else []


def test_a_task_that_was_not_listed_is_listed_again() -> None:
    """All listed tasks are done and the job is not, so a task is missing in the list."""
    jobs = LateIndex()
    start_sealed_job(jobs, ManualClock(), 2, job_id="j")
    dispatcher = TaskDispatcher(
        jobs, JobTracker(jobs, None), lambda task: {}, pause_seconds=0.0
    )
    InlinePool(dispatcher)
    assert dispatcher.run(read_job(jobs, "j"), lost=Event()).status is JobStatus.COMPLETED


@pytest.mark.requirement("R004-213")
def test_each_job_gets_one_slot_before_any_job_gets_a_second() -> None:
    jobs = MemoryJobs()
    dispatcher = TaskDispatcher(jobs, JobTracker(jobs, None), lambda task: {})
    InlinePool(dispatcher)
    one, other = (ExportJob.create(name, "e", "u") for name in "ab")
    with dispatcher._enter(one) as first, dispatcher._enter(other) as second:
        for active in (first, second):
            active.add_page([ExportTask.create(active.job_id, f"u{n}", "k") for n in range(3)])
        taken = [dispatcher.take() for _ in range(4)]
    assert [task.job_id for task in taken if task] == ["a", "b", "a", "b"]
