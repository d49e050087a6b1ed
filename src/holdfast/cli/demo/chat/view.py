"""The state of the chat scenario: conversation, window, lock, outbox and workers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.demo.processes import DemoProcess
from holdfast.conversations.model import Conversation, Status, Window
from holdfast.conversations.outbox import get_outbox_state

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_MIN_LINES = 6  # of the conversation, to keep the height constant
_STYLES = {"sent": "bold green", "answered": "green", "staged": "blue"}  # others are yellow


@dataclass(frozen=True, slots=True)
class ChatLine:
    """A line of the conversation, with its state."""

    speaker: str
    text: str
    at: float
    state: str


@dataclass(frozen=True, slots=True)
class ChatView:
    """The conversation, its window, its lock, its outbox, and the workers."""

    lines: Sequence[ChatLine]
    conversation: Conversation | None
    window: Window | None
    workers: Sequence[DemoProcess]
    now: float

    def format_line(self) -> str:
        """Return the counts and the facts as one line."""
        states = Counter(line.state for line in self.lines)
        counts = f"{states['staged']} staged, {states['answered']} answered"
        return "; ".join([counts, *(f"{name} {state}" for name, state in self._list_facts())])

    def render(self) -> "Sequence[RenderableType]":
        """Return the conversation, the facts and a table of the workers."""
        return [
            self._render_lines(),
            "",
            self._render_facts(),
            "",
            self._render_workers(),
        ]

    # -- facts

    def _list_facts(self) -> list[tuple[str, str]]:
        return [
            ("window", self._format_window()),
            ("lock", self._format_lock()),
            ("outbox", self._format_outbox()),
        ]

    def _format_window(self) -> str:
        if self.window is None:
            return "closed"
        return f"open for {max(0.0, self.now - self.window.opened_at):.1f} s"

    def _format_lock(self) -> str:
        if self.conversation is None or self.conversation.status != Status.PROCESSING:
            return "free"
        left = self.conversation.lock_expires_at - self.now
        return f"held, {left:.1f} s left" if left > 0 else "expired"

    def _format_outbox(self) -> str:
        outbox = self.conversation.outbox if self.conversation else None
        return (
            "empty" if outbox is None else f"{get_outbox_state(outbox)}, for {len(outbox.sids)}"
        )

    # -- rendering

    def _render_lines(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        for line in sorted(self.lines, key=lambda line: line.at):
            text = Text(" / ".join(line.text.splitlines()), no_wrap=True, overflow="ellipsis")
            state = Text(line.state, _STYLES.get(line.state, "yellow"), no_wrap=True)
            table.add_row(Text(line.speaker, "dim"), text, state)
        for _ in range(_MIN_LINES - len(self.lines)):
            table.add_row("")
        return table

    def _render_facts(self) -> "Text":
        from rich.text import Text

        legend = Text(no_wrap=True)
        for name, state in self._list_facts():
            legend.append(f"{name} ", style="cyan").append(f"{state}   ")
        return legend

    def _render_workers(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table("worker", "pid", "", box=None, pad_edge=False, header_style="dim")
        for worker in self.workers:
            state = worker.outcome or ("running" if worker.counts else "starting")
            style = "red" if worker.killed else "green"
            outcome = Text(state, style, no_wrap=True, overflow="ellipsis")
            table.add_row(str(worker.number), str(worker.pid), outcome)
        return table
