"""Show an export's progress: a live line on a terminal, or a line every ten seconds."""

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
    from rich.text import Text

_DRAW_SECONDS = 0.25
_READ_SECONDS = 1.0  # between two reads of the store
_MAX_JOBS = 8  # that are read
_RATE_SECONDS = 30.0  # that the rate is computed from


class ExportMonitor:
    """The progress of an engine's jobs. Subscribe it to the engine's events."""

    def __init__(
        self,
        jobs: JobStateRepository,
        engine: JobEngine,
        list_jobs: Callable[[], Sequence[str]],
    ) -> None:
        """`list_jobs` returns the ids of the jobs to show."""
        self._jobs, self._pool, self._list_jobs = jobs, engine.pool, list_jobs
        self._lock = Lock()  # several threads emit events
        self.bytes = self.files = self.finished = 0  # finished jobs; all since the start
        self._states: dict[str, JobState] = {}
        self._rate = Rate(_RATE_SECONDS)
        self._read_at = float("-inf")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, TaskCompleted):
                self.bytes += event.bytes_processed
                self.files += 1
            elif isinstance(event, JobFinished):
                self.finished += 1

    def count_running(self) -> int:
        """Return the number of running tasks."""
        return sum(len(worker.tasks) for worker in self._pool.list_workers())

    def describe(self) -> list[tuple[str, str]]:
        """Return the progress of the first few running jobs, as texts and their styles."""
        now = SYSTEM_CLOCK.monotonic()
        if now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            self._read_states()
        states = self._states.values()
        total = sum(state.total_tasks for state in states)
        failed = sum(state.failed_tasks for state in states)
        completed = sum(state.completed_tasks for state in states)
        arrived = self.bytes + sum(map(self._pool.count_running_bytes, self._states))
        self._rate.record(now, self.files, arrived)
        left, per_second = total - completed - failed, self._rate.per_second()
        return [
            (f"{completed:,} of {total:,} done" if total else "listing files", ""),
            (f"{failed:,} failed" if failed else "", "red"),
            (format_bytes(arrived), "green"),
            (f"{format_bytes(self._rate.per_second(1))}/s", ""),
            (
                f"{format_duration(left / per_second)} left" if left and per_second else "",
                "dim",
            ),
        ]

    def _read_states(self) -> None:
        states: dict[str, JobState] = {}
        for job_id in sorted(self._list_jobs())[:_MAX_JOBS]:
            with suppress(StoreUnavailable):  # keep showing the last known state
                job = self._jobs.find_by_id(job_id)
                states |= {} if job is None else {job_id: job.state}
                continue
            states |= {job_id: self._states[job_id]} if job_id in self._states else {}
        self._states = states

    def show(self, title: str, *, many: bool) -> LiveView:
        """Return a live line. With `many` jobs, it says how many are finished."""
        name = strip_control_characters(title)

        def render(hint: str) -> "Text":
            jobs = f"{len(self._list_jobs())} jobs, {self.finished:,} finished" if many else ""
            running = f"{self.count_running()} running"
            heading = [(name, "bold"), (jobs, "dim"), (running, "yellow")]
            return join_texts([*heading, *self.describe(), (hint, "dim")])

        return LiveView(render, _DRAW_SECONDS)


class PlainLines(LiveStatus):
    """Progress for a file or a pipe: a line every ten seconds if something changed."""

    draw_seconds = 10.0

    def __init__(self, monitor: ExportMonitor) -> None:
        self._monitor = monitor
        self._last_line = ""

    def draw(self) -> None:
        """Write a line if something has changed."""
        line = "  ".join(text for text, _ in self._monitor.describe() if text)
        if line != self._last_line:
            self._last_line = line
            info(line)
