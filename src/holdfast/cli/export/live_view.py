"""What an export shows of itself: a live view on a terminal, now and then a line elsewhere.

Names come from lists and messages: they are cleaned, and never read as markup.
"""

from typing import TYPE_CHECKING, Any, Self

from holdfast.cli.console import info, strip_control_characters, terminal
from holdfast.cli.durations import in_words
from holdfast.cli.export.watch import JobLine, Watch, WorkerLine
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
    """The jobs, each with its bar, and what every worker downloads."""

    def __init__(self, watch: Watch, title: str, *, many: bool) -> None:
        """`many`: jobs come and go; their ids are shown, and how many are finished."""
        self._watch, self._title, self._many = watch, title, many
        self._live: Live | None = None
        self._drawn_at = float("-inf")

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(
            console=terminal(stderr=True), auto_refresh=False, transient=True, screen=False
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self) -> None:
        assert self._live is not None
        now = SYSTEM_CLOCK.monotonic()
        if now - self._drawn_at >= _DRAW_SECONDS:
            self._drawn_at = now
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> "RenderableType":
        from rich.console import Group

        jobs, workers = self._watch.jobs(), self._watch.workers()
        return Group(self._head(jobs), *map(self._job, jobs), _crew(workers))

    def _head(self, jobs: list[JobLine]) -> "Text":
        from rich.text import Text

        parts = [Text(strip_control_characters(self._title), "bold")]
        if self._many:
            ended = sum(self._watch.finished.values())
            parts.append(Text(f"{len(jobs)} running, {ended:,} finished", "dim"))
        parts.append(Text("Ctrl-C drains", "dim"))
        return _joined(parts)

    def _job(self, job: JobLine) -> "Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        total, done = job.state.total_tasks, job.state.processed_tasks
        bar = ProgressBar(total=total or None, completed=done, width=30, pulse=not total)
        cells: list[Any] = [bar, _joined(_words(job))]
        grid.add_row(*([_text(job.job_id, "cyan"), *cells] if self._many else cells))
        return grid


def _words(job: JobLine) -> list["Text"]:
    from rich.text import Text

    state = job.state
    parts = [
        (_how_far(state), ""),
        (f"{state.failed_tasks:,} failed" if state.failed_tasks else "", "red"),
        (in_bytes(job.bytes), "green"),
        (f"{in_bytes(job.bytes_per_second)}/s", ""),
        ("" if job.left_seconds is None else f"{in_words(job.left_seconds)} left", "dim"),
    ]
    return [Text(words, style) for words, style in parts if words]


def _how_far(state: JobState) -> str:
    if not state.total_tasks:
        return "listing its files"
    return f"{state.processed_tasks:,} of {state.total_tasks:,}"


def _crew(workers: list[WorkerLine]) -> "Table":
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=_MAX_NAME)
    grid.add_column(justify="right")
    grid.add_column(justify="right")
    grid.add_column()
    for worker in workers:
        grid.add_row(*_worker(worker))
    return grid


def _worker(worker: WorkerLine) -> list["Text"]:
    pid, task = _text(f"  {worker.pid}", "dim"), worker.task
    if task is None:
        return [pid, _text("waits", "dim")]
    more = [f"attempt {task.attempt}"] if task.attempt > 1 else []
    more += [f"and {worker.others} more"] if worker.others else []
    return [
        pid,
        _text(worker.name or "…"),
        _text(in_bytes(task.bytes_processed), "green"),
        _text(in_words(task.seconds)),
        _text(", ".join(more), "yellow" if task.attempt > 1 else "dim"),
    ]


def _text(words: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(strip_control_characters(words), style, no_wrap=True, overflow="ellipsis")


def _joined(parts: list["Text"]) -> "Text":
    from rich.text import Text

    return Text("  ", no_wrap=True, overflow="ellipsis").join(parts)


class PlainLines:
    """For a file or a pipe: a line about every ten seconds, when something changed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._said = ""
        self._say_at = 0.0

    def __enter__(self) -> Self:
        self._say_at = SYSTEM_CLOCK.monotonic() + _LINE_SECONDS
        return self

    def __exit__(self, *_: object) -> None: ...

    def draw(self) -> None:
        if SYSTEM_CLOCK.monotonic() < self._say_at:
            return
        self._say_at += _LINE_SECONDS
        for job in self._watch.jobs():
            line = "  ".join(part.plain for part in _words(job))
            if line != self._said:
                self._said = line
                info(line)


_UNITS = ("B", "kB", "MB", "GB", "TB")


def in_bytes(count: float) -> str:
    """1.2 MB, as one would say it."""
    for unit in _UNITS:
        if count < 999.5 or unit == _UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
