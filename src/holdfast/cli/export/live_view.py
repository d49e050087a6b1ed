"""Show an export's progress: a live view on a terminal, or a line every ten seconds.

Names come from lists and messages, so they are cleaned and never interpreted as markup.
"""

from typing import TYPE_CHECKING, Any, Self

from holdfast.cli.console import info, make_console, strip_control_characters
from holdfast.cli.durations import format_duration
from holdfast.cli.export.monitor import ExportMonitor, JobLine, WorkerLine
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.jobs.model import JobState

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

_DRAW_SECONDS = 0.25
_LINE_SECONDS = 10.0
_MAX_NAME = 48


class LiveView:
    """A live view of the jobs, each with its bar, and of every worker's downloads."""

    def __init__(self, monitor: ExportMonitor, title: str, *, many: bool) -> None:
        """With `many` jobs their ids are shown, and how many are finished."""
        self._monitor, self._title, self._many = monitor, title, many
        self._live: Live | None = None
        self._drawn_at = float("-inf")

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(
            console=make_console(stderr=True), auto_refresh=False, transient=True, screen=False
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self) -> None:
        """Draw the view, at most four times a second."""
        assert self._live is not None
        now = SYSTEM_CLOCK.monotonic()
        if now - self._drawn_at >= _DRAW_SECONDS:
            self._drawn_at = now
            self._live.update(self._render(), refresh=True)

    def _render(self) -> "RenderableType":
        from rich.console import Group

        jobs, workers = self._monitor.jobs(), self._monitor.workers()
        return Group(
            self._render_heading(jobs), *map(self._render_job, jobs), _render_workers(workers)
        )

    def _render_heading(self, jobs: list[JobLine]) -> "Text":
        from rich.text import Text

        parts = [Text(strip_control_characters(self._title), "bold")]
        if self._many:
            ended = sum(self._monitor.finished.values())
            parts.append(Text(f"{len(jobs)} running, {ended:,} finished", "dim"))
        parts.append(Text("Ctrl-C drains", "dim"))
        return _join(parts)

    def _render_job(self, job: JobLine) -> "Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        total, done = job.state.total_tasks, job.state.processed_tasks
        bar = ProgressBar(total=total or None, completed=done, width=30, pulse=not total)
        cells: list[Any] = [bar, _join(_describe_job(job))]
        grid.add_row(*([_make_text(job.job_id, "cyan"), *cells] if self._many else cells))
        return grid


def _describe_job(job: JobLine) -> list["Text"]:
    from rich.text import Text

    state = job.state
    parts = [
        (_format_progress(state), ""),
        (f"{state.failed_tasks:,} failed" if state.failed_tasks else "", "red"),
        (format_bytes(job.bytes), "green"),
        (f"{format_bytes(job.bytes_per_second)}/s", ""),
        (
            "" if job.left_seconds is None else f"{format_duration(job.left_seconds)} left",
            "dim",
        ),
    ]
    return [Text(text, style) for text, style in parts if text]


def _format_progress(state: JobState) -> str:
    if not state.total_tasks:
        return "listing files"
    return f"{state.processed_tasks:,} of {state.total_tasks:,}"


def _render_workers(workers: list[WorkerLine]) -> "Table":
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=_MAX_NAME)
    grid.add_column(justify="right")
    grid.add_column(justify="right")
    grid.add_column()
    for worker in workers:
        grid.add_row(*_describe_worker(worker))
    return grid


def _describe_worker(worker: WorkerLine) -> list["Text"]:
    pid, task = _make_text(f"  {worker.pid}", "dim"), worker.task
    if task is None:
        return [pid, _make_text("idle", "dim")]
    more = [f"attempt {task.attempt}"] if task.attempt > 1 else []
    more += [f"and {worker.others} more"] if worker.others else []
    return [
        pid,
        _make_text(worker.name or "…"),
        _make_text(format_bytes(task.bytes_processed), "green"),
        _make_text(format_duration(task.seconds)),
        _make_text(", ".join(more), "yellow" if task.attempt > 1 else "dim"),
    ]


def _make_text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(strip_control_characters(text), style, no_wrap=True, overflow="ellipsis")


def _join(parts: list["Text"]) -> "Text":
    from rich.text import Text

    return Text("  ", no_wrap=True, overflow="ellipsis").join(parts)


class PlainLines:
    """Progress for a file or a pipe: a line every ten seconds if something changed."""

    def __init__(self, monitor: ExportMonitor) -> None:
        self._monitor = monitor
        self._last_line = ""
        self._next_line_at = 0.0

    def __enter__(self) -> Self:
        self._next_line_at = SYSTEM_CLOCK.monotonic() + _LINE_SECONDS
        return self

    def __exit__(self, *_: object) -> None: ...

    def draw(self) -> None:
        """Write a line if ten seconds have passed."""
        if SYSTEM_CLOCK.monotonic() < self._next_line_at:
            return
        self._next_line_at += _LINE_SECONDS
        for job in self._monitor.jobs():
            line = "  ".join(part.plain for part in _describe_job(job))
            if line != self._last_line:
                self._last_line = line
                info(line)


_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_bytes(count: float) -> str:
    """Return a readable size, such as 1.2 MB."""
    for unit in _UNITS:
        if count < 999.5 or unit == _UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
