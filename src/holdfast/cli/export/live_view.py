"""Show an export's progress: a live view on a terminal, or a line every ten seconds.

Names come from lists and messages, so they are cleaned and never interpreted as markup.
"""

from typing import TYPE_CHECKING, Self

from holdfast.cli.console import info, strip_control_characters
from holdfast.cli.export.monitor import ExportMonitor, JobLine, WorkerLine
from holdfast.cli.formatting import format_bytes, format_duration
from holdfast.cli.live_view import LiveView, join_texts
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_DRAW_SECONDS = 0.25
_LINE_SECONDS = 10.0
_MAX_NAME = 48


def show_export(monitor: ExportMonitor, title: str, *, many: bool) -> LiveView:
    """Return a live view of the jobs, each with its bar, and of every worker's downloads.

    With `many` jobs their ids are shown, and how many are finished.
    """

    def render() -> "Group":
        from rich.console import Group

        jobs = monitor.jobs()
        ended = sum(monitor.finished.values())
        heading = [
            (strip_control_characters(title), "bold"),
            (f"{len(jobs)} running, {ended:,} finished" if many else "", "dim"),
            ("Ctrl-C drains", "dim"),
        ]
        lines = [_render_job(job, many) for job in jobs]
        return Group(join_texts(heading), *lines, _render_workers(monitor.workers()))

    return LiveView(render, _DRAW_SECONDS)


def _render_job(job: JobLine, many: bool) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    total, done = job.state.total_tasks, job.state.processed_tasks
    bar = ProgressBar(total=total or None, completed=done, width=30, pulse=not total)
    name = [_make_text(job.job_id, "cyan")] if many else []
    grid.add_row(*name, bar, join_texts(_describe_job(job)))
    return grid


def _describe_job(job: JobLine) -> list[tuple[str, str]]:
    state, left = job.state, job.left_seconds
    done = f"{state.processed_tasks:,} of {state.total_tasks:,}"
    return [
        (done if state.total_tasks else "listing files", ""),
        (f"{state.failed_tasks:,} failed" if state.failed_tasks else "", "red"),
        (format_bytes(job.bytes), "green"),
        (f"{format_bytes(job.bytes_per_second)}/s", ""),
        ("" if left is None else f"{format_duration(left)} left", "dim"),
    ]


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
            line = "  ".join(text for text, _ in _describe_job(job) if text)
            if line != self._last_line:
                self._last_line = line
                info(line)
