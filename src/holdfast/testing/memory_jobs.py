"""A job store in memory, on plain values. Other stores are compared with it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs import transitions
from holdfast.jobs.errors import JobExists
from holdfast.jobs.model import ExportJob, ExportTask, JobStatus, TaskResult, TaskStatus
from holdfast.jobs.store import JobChange, RuleJobStore


class JobMemory:
    """The stored jobs and tasks. Several MemoryJobs may share them."""

    def __init__(self) -> None:
        self.jobs: dict[str, ExportJob] = {}
        self.tasks: dict[str, dict[str, ExportTask]] = {}
        self.lock = RLock()


class MemoryJobs(RuleJobStore):
    """A job store that lasts as long as its memory. Safe for threads."""

    def __init__(
        self,
        memory: JobMemory | None = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
    ) -> None:
        super().__init__(clock, keep_seconds)
        self._memory = JobMemory() if memory is None else memory

    def save(self, job: ExportJob) -> None:
        with self._memory.lock:
            if job.job_id in self._memory.jobs:
                raise JobExists(f"job {job.job_id!r} exists already")
            self._memory.jobs[job.job_id] = job
            self._memory.tasks[job.job_id] = {}

    def find_by_id(self, job_id: str) -> ExportJob | None:
        return self._memory.jobs.get(job_id)

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        with self._memory.lock:
            return [job for job in self._memory.jobs.values() if job.status is status]

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        with self._memory.lock:
            self._change(job_id, transitions.accept_tasks)
            for task in tasks:
                pending = replace(task, status=TaskStatus.PENDING)
                self._memory.tasks[job_id].setdefault(task.task_id, pending)

    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        with self._memory.lock:
            self._read(job_id)
            rows = sorted(self._memory.tasks[job_id].values(), key=lambda task: task.task_id)
        following = [task for task in rows if after is None or task.task_id > after]
        return [task for task in following if status in (None, task.status)][:limit]

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        with self._memory.lock:
            self._read(job_id)
            rows = self._memory.tasks[job_id]
            first_results = transitions.keep_first_results(job_id, results)
            return self._count(
                [
                    task
                    for task_id, result in first_results.items()
                    if (task := transitions.finish_task(rows.get(task_id), result))
                ],
                job_id,
            )

    def _count_unlisted(self, result: TaskResult) -> None:
        with self._memory.lock:
            task = ExportTask(result.job_id, result.task_id, "", "", status=result.status)
            self._count([task], result.job_id)

    def _count(self, finished: list[ExportTask], job_id: str) -> int:
        completed = sum(task.status is TaskStatus.COMPLETED for task in finished)
        failed = len(finished) - completed
        self._change(job_id, transitions.count_results, completed, failed)
        self._memory.tasks[job_id].update({task.task_id: task for task in finished})
        return len(finished)

    def close(self) -> None:
        pass

    def _read(self, job_id: str) -> ExportJob:
        try:
            return self._memory.jobs[job_id]
        except KeyError:
            raise transitions.build_not_found_error(job_id) from None

    def _change(
        self,
        job_id: str,
        rule: transitions.Rule,
        *arguments: Any,
        return_before: bool = False,
    ) -> JobChange:
        with self._memory.lock:
            job, now = self._read(job_id), self._clock.time()
            after = transitions.apply_rule(rule, job, now, self._keep_seconds, *arguments)
            self._memory.jobs[job_id] = after
            return JobChange(job if return_before else after, after is not job)
