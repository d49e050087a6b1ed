"""The state of the export scenario: the job, the services with their workers, the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.demo.processes import DemoProcess
from holdfast.cli.export.live_view import format_bytes
from holdfast.jobs.model import JobState

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_WIDTH = 60


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """A service and the ids of its pool workers."""

    service: DemoProcess
    workers: Sequence[int]


@dataclass(frozen=True, slots=True)
class ExportView:
    """The counts of the job and the server, and the services."""

    total: int  # files requested
    state: JobState
    open: int  # running downloads
    sent: int  # bytes
    services: Sequence[ServiceLine]

    def format_line(self) -> str:
        """Return the counts as one line."""
        state = self.state
        return (
            f"{state.completed_tasks} files counted, {state.failed_tasks} failed, "
            f"{self._left} left, {self.open} downloading, {format_bytes(self.sent)} sent"
        )

    @property
    def _left(self) -> int:
        return self.total - self.state.processed_tasks

    def render(self) -> "Sequence[RenderableType]":
        """Return the bar, the counts and a table of the services."""
        return [self._render_bar(), self._render_legend(), "", self._render_services()]

    def _list_shares(self) -> list[tuple[str, int, str]]:
        done, failed = self.state.completed_tasks, self.state.failed_tasks
        moving = min(self.open, self._left)
        return [
            ("counted", done, "green"),
            ("downloading", moving, "yellow"),
            ("left", self._left - moving, "blue"),
            ("failed", failed, "red"),
        ]

    def _render_bar(self) -> "Text":
        from rich.text import Text

        bar, drawn, total = Text(), 0, 0
        for _, count, shade in self._list_shares():
            total += count
            to = round(_WIDTH * total / self.total)
            bar.append("━" * (to - drawn), style=shade)
            drawn = to
        return bar

    def _render_legend(self) -> "Text":
        from rich.text import Text

        text = Text()
        for name, count, shade in self._list_shares():
            text.append(f"{name} ", style=shade)
            text.append(f"{count:,}   ")
        text.append(f"{format_bytes(self.sent)} sent", style="dim")
        return text

    def _render_services(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table(
            "service", "pid", "pool workers", "", box=None, pad_edge=False, header_style="dim"
        )
        for line in self.services:
            service = line.service
            state = service.outcome or ("running" if line.workers else "starting")
            outcome = Text(state, "red" if service.killed else "green", no_wrap=True)
            pids = " ".join(map(str, line.workers)) or "-"
            table.add_row(str(service.number), str(service.pid), pids, outcome)
        return table
