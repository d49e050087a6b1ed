"""How the second act stands: the job, the services and their workers, the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.demo.crew import WorkerHandle
from holdfast.cli.export.live_view import in_bytes
from holdfast.jobs.model import JobState

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_WIDTH = 60


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """A service and the ids of its pool workers."""

    hand: WorkerHandle
    workers: Sequence[int]


@dataclass(frozen=True, slots=True)
class ExportScene:
    asked: int
    state: JobState
    open: int  # downloads under way
    sent: int  # bytes
    services: Sequence[ServiceLine]

    def line(self) -> str:
        state = self.state
        return (
            f"{state.completed_tasks} files counted, {state.failed_tasks} failed, "
            f"{self._left} to go, {self.open} under way, {in_bytes(self.sent)} sent"
        )

    @property
    def _left(self) -> int:
        return self.asked - self.state.processed_tasks

    def picture(self) -> "Sequence[RenderableType]":
        return [self._bar(), self._legend(), "", self._services()]

    def _parts(self) -> list[tuple[str, int, str]]:
        done, failed = self.state.completed_tasks, self.state.failed_tasks
        moving = min(self.open, self._left)
        return [
            ("counted", done, "green"),
            ("under way", moving, "yellow"),
            ("to go", self._left - moving, "blue"),
            ("failed", failed, "red"),
        ]

    def _bar(self) -> "Text":
        from rich.text import Text

        bar, drawn, sum_ = Text(), 0, 0
        for _, count, shade in self._parts():
            sum_ += count
            to = round(_WIDTH * sum_ / self.asked)
            bar.append("━" * (to - drawn), style=shade)
            drawn = to
        return bar

    def _legend(self) -> "Text":
        from rich.text import Text

        text = Text()
        for name, count, shade in self._parts():
            text.append(f"{name} ", style=shade)
            text.append(f"{count:,}   ")
        text.append(f"{in_bytes(self.sent)} sent", style="dim")
        return text

    def _services(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table(
            "service", "pid", "pool workers", "", box=None, pad_edge=False, header_style="dim"
        )
        for line in self.services:
            hand = line.hand
            state = hand.fate or ("at work" if line.workers else "starting")
            fate = Text(state, "red" if hand.killed else "green", no_wrap=True)
            pids = " ".join(map(str, line.workers)) or "-"
            table.add_row(str(hand.number), str(hand.pid), pids, fate)
        return table
