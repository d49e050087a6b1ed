"""Show an export's progress: a live view on a terminal, or a line every ten seconds."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.cli.console import info, strip_control_characters
from holdfast.cli.live_view import LiveStatus, LiveView, Rate, join_texts
from holdfast.events import Event
from holdfast.exports.engine import JobEngine
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.events import JobFinished, TaskCompleted
from holdfast.exports.model import JobState
from holdfast.exports.ports import JobStateRepository
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.text import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_DRAW_SECONDS = 0.25
_READ_SECONDS = 1.0  # between two reads of the store
_MAX_JOBS = 8  # that are read and shown
_RATE_SECONDS = 30.0  # that the rate is computed from

Parts = list[tuple[str, str]]  # texts and their styles


class ExportMonitor:
    """The progress of an engine's jobs.

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
        self.finished = 0
        self._shown: dict[str, tuple[JobState, Rate]] = {}
        self._read_at = float("-inf")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, TaskCompleted):
                self._bytes[event.job_id] += event.bytes_processed
            elif isinstance(event, JobFinished):
                self.finished += 1

    def count_running(self) -> int:
        """Return the number of running tasks."""
        return sum(len(worker.tasks) for worker in self._engine.pool.list_workers())

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


# -- views


def show_export(monitor: ExportMonitor, title: str, *, many: bool) -> LiveView:
    """Return a live view of the jobs, each with its bar.

    With `many` jobs their ids are shown, and how many are finished.
    """

    def render(hint: str) -> "Group":
        from rich.console import Group

        jobs = monitor.jobs()
        heading = [
            (strip_control_characters(title), "bold"),
            (f"{len(jobs)} jobs, {monitor.finished:,} finished" if many else "", "dim"),
            (f"{monitor.count_running()} running", "yellow"),
            (hint, "dim"),
        ]
        return Group(join_texts(heading), *(_render_job(*job, many=many) for job in jobs))

    return LiveView(render, _DRAW_SECONDS)


def _render_job(job_id: str, state: JobState, progress: Parts, *, many: bool) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total = state.total_tasks
    name = Text(strip_control_characters(job_id), "cyan", no_wrap=True)  # an id is never cut
    bar = ProgressBar(total or None, state.processed_tasks, width=30, pulse=not total)
    grid = Table.grid(padding=(0, 1))
    grid.add_row(*([name] if many else []), bar, join_texts(progress))
    return grid


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
