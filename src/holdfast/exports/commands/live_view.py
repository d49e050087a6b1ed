"""Show an export's progress: a live view on a terminal, or a line every ten seconds.

Names come from lists and messages, so they are cleaned and never interpreted as markup.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.cli.console import info, strip_control_characters
from holdfast.cli.live_view import LiveStatus, LiveView, Rate, join_texts
from holdfast.events import Event
from holdfast.exports.engine import JobEngine
from holdfast.exports.errors import JobNotFound, StoreUnavailable
from holdfast.exports.events import JobFinished, TaskCompleted
from holdfast.exports.model import JobState
from holdfast.exports.pool.worker import WorkerInfo
from holdfast.exports.ports import JobStateRepository
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.text import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Group, JustifyMethod
    from rich.table import Table
    from rich.text import Text

_DRAW_SECONDS = 0.25
_MAX_NAME = 48
_WORKER_COLUMNS: "tuple[JustifyMethod, ...]" = ("right", "left", "right", "right", "left")
_READ_SECONDS = 1.0  # between two reads of the store
_MAX_JOBS = 8  # that are read and shown
_RATE_SECONDS = 30.0  # that the rate is computed from
_MAX_NAMES = 256  # that are cached


Parts = list[tuple[str, str]]  # texts and their styles


class ExportMonitor:
    """The progress of an engine's jobs and workers.

    Subscribe it to the engine's events. One thread may read it while others emit events.
    """

    def __init__(
        self,
        jobs: JobStateRepository,
        engine: JobEngine,
        list_jobs: Callable[[], Sequence[str]],
    ) -> None:
        """`list_jobs` returns the ids of the jobs to show."""
        self._jobs, self._engine, self._list_jobs = jobs, engine, list_jobs
        self._lock = Lock()
        self._bytes: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()  # jobs, by how they ended
        self._shown: dict[str, tuple[JobState, Rate]] = {}
        self.find_name = lru_cache(_MAX_NAMES)(self._look_up_name)
        self._read_at = float("-inf")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, TaskCompleted):
                self._bytes[event.job_id] += event.bytes_processed
            elif isinstance(event, JobFinished):
                self.finished[event.status] += 1

    def count_running(self) -> int:
        """Return the number of running tasks."""
        return sum(len(worker.tasks) for worker in self.list_workers())

    def list_workers(self) -> Sequence[WorkerInfo]:
        """Return the state of every worker."""
        return self._engine.pool.list_workers()

    def jobs(self) -> list[tuple[str, JobState, Parts]]:
        """Return the id, the state and the progress of the first few running jobs."""
        now = SYSTEM_CLOCK.monotonic()
        if now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            self._read_states()
        return [
            (job_id, state, self._describe_job(job_id, state, rate, now))
            for job_id, (state, rate) in self._shown.items()
        ]

    def count_bytes(self, job_id: str) -> int:
        """Return the bytes of a job's files that were completed since the start."""
        with self._lock:
            return self._bytes[job_id]

    def _read_states(self) -> None:
        shown: dict[str, tuple[JobState, Rate]] = {}
        for job_id in sorted(self._list_jobs())[:_MAX_JOBS]:
            state, rate = self._shown.get(job_id, (None, Rate(_RATE_SECONDS)))
            with suppress(StoreUnavailable):  # keep showing the last known state
                job = self._jobs.find_by_id(job_id)
                state = None if job is None else job.state
            if state is not None:
                shown[job_id] = state, rate
        self._shown = shown

    def _describe_job(self, job_id: str, state: JobState, rate: Rate, now: float) -> Parts:
        arrived = self.count_bytes(job_id) + self._engine.pool.count_running_bytes(job_id)
        rate.record(now, state.processed_tasks, arrived)
        left, per_second = state.total_tasks - state.processed_tasks, rate.per_second()
        done = f"{state.completed_tasks:,} of {state.total_tasks:,} done"
        return [
            (done if state.total_tasks else "listing files", ""),
            (f"{state.failed_tasks:,} failed" if state.failed_tasks else "", "red"),
            (format_bytes(arrived), "green"),
            (f"{format_bytes(rate.per_second(1))}/s", ""),
            (
                f"{format_duration(left / per_second)} left" if left and per_second else "",
                "dim",
            ),
        ]

    def _look_up_name(self, job_id: str, task_id: str) -> str:
        # The store lists tasks in the order of their ids, after a given one. So after the
        # id just before this task's, this task is the first.
        before = f"{int(task_id, 16) - 1:032x}"
        try:
            tasks = self._jobs.tasks(job_id, after=before, limit=1)
        except (StoreUnavailable, JobNotFound):
            return ""
        return tasks[0].key if tasks and tasks[0].task_id == task_id else ""


# -- views


def show_export(monitor: ExportMonitor, title: str, *, many: bool) -> LiveView:
    """Return a live view of the jobs, each with its bar, and of every worker's downloads.

    With `many` jobs their ids are shown, and how many are finished.
    """

    def render(hint: str) -> "Group":
        from rich.console import Group

        jobs = monitor.jobs()
        ended = sum(monitor.finished.values())
        heading = [
            (strip_control_characters(title), "bold"),
            (f"{len(jobs)} running, {ended:,} finished" if many else "", "dim"),
            (hint, "dim"),
        ]
        lines = [_render_job(*job, many=many) for job in jobs]
        return Group(join_texts(heading), *lines, _render_workers(monitor))

    return LiveView(render, _DRAW_SECONDS)


def _render_job(job_id: str, state: JobState, progress: Parts, *, many: bool) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    total = state.total_tasks
    bar = ProgressBar(total or None, state.processed_tasks, width=30, pulse=not total)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)  # an id is never cut
    grid.add_row(*([_make_text(job_id, "cyan")] if many else []), bar, join_texts(progress))
    return grid


def _render_workers(monitor: ExportMonitor) -> "Table":
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for justify in _WORKER_COLUMNS:
        grid.add_column(justify=justify, max_width=_MAX_NAME)
    for worker in monitor.list_workers():
        grid.add_row(*_describe_worker(monitor, worker))
    return grid


def _describe_worker(monitor: ExportMonitor, worker: WorkerInfo) -> list["Text"]:
    """Return the cells of a worker, with its oldest running task."""
    pid, others = _make_text(f"  {worker.pid}", "dim"), len(worker.tasks) - 1
    run = min(worker.tasks, key=lambda run: run.started_at, default=None)
    if run is None:
        return [pid, _make_text("idle", "dim")]
    more = [f"attempt {run.number}"] if run.number > 1 else []
    more += [f"and {others} more"] if others else []
    return [
        pid,
        _make_text(monitor.find_name(run.assignment.job_id, run.assignment.task_id) or "…"),
        _make_text(format_bytes(run.bytes_processed), "green"),
        _make_text(format_duration(max(0.0, SYSTEM_CLOCK.monotonic() - run.started_at))),
        _make_text(", ".join(more), "yellow" if run.number > 1 else "dim"),
    ]


def _make_text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(strip_control_characters(text), style, no_wrap=True, overflow="ellipsis")


class PlainLines(LiveStatus):
    """Progress for a file or a pipe: a line every ten seconds if something changed."""

    draw_seconds = 10.0

    def __init__(self, monitor: ExportMonitor) -> None:
        self._monitor = monitor
        self._last_line = ""

    def draw(self) -> None:
        """Write a line for each job that has changed."""
        for _, _, progress in self._monitor.jobs():
            line = "  ".join(text for text, _ in progress if text)
            if line != self._last_line:
                self._last_line = line
                info(line)
