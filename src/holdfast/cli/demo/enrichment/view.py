"""The state of the queue scenario: the queue and its workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.demo.processes import DemoProcess
from holdfast.cli.queue_view import draw_bar, draw_legend
from holdfast.core.queue.manager import QueueStats

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class EnrichmentView:
    """The queue's counts and the worker processes."""

    stats: QueueStats
    workers: Sequence[DemoProcess]

    def format_line(self) -> str:
        """Return the counts as one line."""
        stats = self.stats
        return (
            f"{stats.completed} completed, {stats.leased} leased, "
            f"{stats.ready + stats.delayed} waiting, {stats.failed} dead"
        )

    def render(self) -> "Sequence[RenderableType]":
        """Return the bar, the counts and a table of the workers."""
        return [draw_bar(self.stats), draw_legend(self.stats), "", self._render_workers()]

    def _render_workers(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table("worker", "pid", "done", "", box=None, pad_edge=False, header_style="dim")
        for worker in self.workers:
            state = worker.outcome or ("running" if worker.counts else "starting")
            style = "red" if worker.killed else "green"
            outcome = Text(state, style=style, no_wrap=True, overflow="ellipsis")
            done = str(worker.counts["completed"])
            table.add_row(str(worker.number), str(worker.pid), done, outcome)
        return table
