"""Where a job's thread and the pool's thread meet, and what moves a job between results."""

from threading import Event
from typing import Any

from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.jobs.active_job import PAGE, ActiveJob
from holdfast.jobs.dispatcher import TaskDispatcher
from holdfast.jobs.model import ExportJob, ExportTask, JobStatus, TaskResult
from holdfast.jobs.tracker import JobTracker
from holdfast.testing import ManualClock, MemoryJobs
from jobs.inline_pool import InlinePool


def tasks(count: int) -> list[ExportTask]:
    return [ExportTask.of("j", f"https://files.example/{n}", f"{n}") for n in range(count)]


def done(task: ExportTask) -> TaskResult:
    return TaskResult("j", task.task_id, True)


def test_a_task_that_was_returned_is_the_next_one() -> None:
    run = ActiveJob("j")
    run.offer(tasks(3))
    first = run.take()
    assert first is not None
    run.returned(first.task_id)
    assert run.take() == first
    assert not run.exhausted


def test_nothing_is_taken_from_a_run_that_is_closed() -> None:
    run = ActiveJob("j")
    run.offer(tasks(3))
    taken = run.take()
    assert taken is not None
    run.close()
    assert run.take() is None
    run.finished(done(taken))
    assert len(run.results(0)) == 1  # what ran may still finish


def test_results_of_tasks_that_are_not_out_are_not_kept() -> None:
    run = ActiveJob("j")
    listed = tasks(1)
    run.offer(listed)
    run.finished(done(listed[0]))
    assert not run.results(0)


def test_nothing_is_kept_of_a_run_that_is_cancelled() -> None:
    run = ActiveJob("j")
    run.offer(tasks(3))
    one, other = run.take(), run.take()
    assert one is not None
    assert other is not None
    run.cancel()
    run.finished(done(one))
    run.returned(other.task_id)
    assert not run.results(0)
    assert run.take() is None


def test_tasks_wait_while_too_many_results_are_not_counted() -> None:
    """JB-32: a store that is away must not fill the memory."""
    run = ActiveJob("j")
    listed = tasks(6000)
    run.offer(listed)
    taken = 0
    while (task := run.take()) is not None:
        run.finished(done(task))
        taken += 1
    assert taken == 5000
    run.counted(run.results(0))
    assert run.take() is not None


def test_the_next_page_is_wanted_before_the_last_one_is_empty() -> None:
    run = ActiveJob("j")
    assert run.hungry
    run.offer(tasks(PAGE))
    assert not run.hungry
    for _ in range(PAGE * 3 // 4):
        run.take()
    assert run.hungry
    run.offer(tasks(1))
    assert not run.hungry  # less than a page: there is no more


def test_a_large_file_that_arrives_is_progress() -> None:
    """JB-17: a job is not stalled while its bytes come in, and is when they do not."""
    clock = ManualClock()
    jobs = MemoryJobs(clock=clock)
    jobs.save(ExportJob.create("j", "e", "u", now=clock.time()))
    jobs.add_tasks("j", tasks(1))
    jobs.update_job_status("j", JobStatus.DOWNLOADING)
    jobs.set_total_tasks("j", 1)
    dispatcher = TaskDispatcher(
        jobs, JobTracker(jobs, None), lambda task: {}, progress_seconds=30, clock=clock
    )
    pool = InlinePool(dispatcher, lambda task: None)
    noted: list[float] = []
    job = jobs.find_by_id("j")
    assert job is not None
    lost = Event()

    def look() -> bool:
        """Called once per step: time passes, bytes come for a while."""
        clock.advance(31)
        pool.bytes += 1000 if len(noted) < 3 else 0
        now = jobs.find_by_id("j")
        assert now is not None
        noted.append(now.last_progress_at)
        if len(noted) == 8:
            lost.set()
        return False

    dispatcher.run(job, lost=lost, leave=look)
    assert noted[0] < noted[1] < noted[2] < noted[3]
    assert noted[5] == noted[6] == noted[7]


class Forgetful(MemoryJobs):
    """Lists nothing the first time it is asked."""

    asked = 0

    def tasks(self, job_id: str, **which: Any) -> list[ExportTask]:
        self.asked += 1
        return super().tasks(job_id, **which) if self.asked > 1 else []


def test_a_task_that_was_not_listed_is_looked_for_again() -> None:
    """All that was listed is done and the job is not: something is left."""
    jobs = Forgetful()
    jobs.save(ExportJob.create("j", "e", "u", now=SYSTEM_CLOCK.time()))
    jobs.add_tasks("j", tasks(2))
    jobs.update_job_status("j", JobStatus.DOWNLOADING)
    jobs.set_total_tasks("j", 2)
    dispatcher = TaskDispatcher(
        jobs, JobTracker(jobs, None), lambda task: {}, pause_seconds=0.0
    )
    InlinePool(dispatcher)
    job = jobs.find_by_id("j")
    assert job is not None
    assert dispatcher.run(job, lost=Event()).status is JobStatus.COMPLETED
