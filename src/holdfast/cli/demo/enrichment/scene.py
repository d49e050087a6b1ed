"""How the first act stands: the queue, and who works on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.board import bar, legend
from holdfast.cli.demo.crew import WorkerHandle
from holdfast.core.queue.manager import QueueStats

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class QueueScene:
    stats: QueueStats
    hands: Sequence[WorkerHandle]

    def line(self) -> str:
        stats = self.stats
        return (
            f"{stats.completed} completed, {stats.leased} held, "
            f"{stats.ready + stats.delayed} waiting, {stats.failed} dead"
        )

    def picture(self) -> "Sequence[RenderableType]":
        return [bar(self.stats), legend(self.stats), "", self._workers()]

    def _workers(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table("worker", "pid", "done", "", box=None, pad_edge=False, header_style="dim")
        for hand in self.hands:
            state = hand.fate or ("at work" if hand.counts else "starting")
            style = "red" if hand.killed else "green"
            fate = Text(state, style=style, no_wrap=True, overflow="ellipsis")
            done = str(hand.counts["completed"])
            table.add_row(str(hand.number), str(hand.pid), done, fate)
        return table
