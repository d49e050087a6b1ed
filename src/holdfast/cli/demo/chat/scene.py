"""How the third act stands: who said what, the window, the lock, the outbox, the workers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.demo.crew import WorkerHandle
from holdfast.conversations.model import Conversation, Status, Window
from holdfast.conversations.outbox import state_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_LINES = 6  # of the conversation: a picture that does not jump
_STYLES = {"sent": "bold green", "answered": "green", "staged": "blue"}  # else: yellow


@dataclass(frozen=True, slots=True)
class Said:
    """A line of the conversation, and what has become of it."""

    who: str
    text: str
    at: float
    state: str


@dataclass(frozen=True, slots=True)
class ChatScene:
    said: Sequence[Said]
    conversation: Conversation | None
    window: Window | None
    hands: Sequence[WorkerHandle]
    now: float

    def line(self) -> str:
        states = Counter(one.state for one in self.said)
        counts = f"{states['staged']} staged, {states['answered']} answered"
        return "; ".join([counts, *(f"{what} {how}" for what, how in self._facts())])

    def picture(self) -> "Sequence[RenderableType]":
        return [self._talk(), "", self._legend(), "", self._workers()]

    # -- in words

    def _facts(self) -> list[tuple[str, str]]:
        return [("window", self._window()), ("lock", self._lock()), ("outbox", self._outbox())]

    def _window(self) -> str:
        if self.window is None:
            return "closed"
        return f"open for {max(0.0, self.now - self.window.opened_at):.1f} s"

    def _lock(self) -> str:
        if self.conversation is None or self.conversation.status != Status.PROCESSING:
            return "free"
        left = self.conversation.lock_expires_at - self.now
        return f"held, {left:.1f} s left" if left > 0 else "run out"

    def _outbox(self) -> str:
        outbox = self.conversation.outbox if self.conversation else None
        return "empty" if outbox is None else f"{state_of(outbox)}, for {len(outbox.sids)}"

    # -- drawn

    def _talk(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        talk = Table(box=None, pad_edge=False, show_header=False)
        for one in sorted(self.said, key=lambda one: one.at):
            text = Text(" / ".join(one.text.splitlines()), no_wrap=True, overflow="ellipsis")
            state = Text(one.state, _STYLES.get(one.state, "yellow"), no_wrap=True)
            talk.add_row(Text(one.who, "dim"), text, state)
        for _ in range(_LINES - len(self.said)):
            talk.add_row("")
        return talk

    def _legend(self) -> "Text":
        from rich.text import Text

        legend = Text(no_wrap=True)
        for what, how in self._facts():
            legend.append(f"{what} ", style="cyan").append(f"{how}   ")
        return legend

    def _workers(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table("worker", "pid", "", box=None, pad_edge=False, header_style="dim")
        for hand in self.hands:
            state = hand.fate or ("at work" if hand.counts else "starting")
            style = "red" if hand.killed else "green"
            fate = Text(state, style, no_wrap=True, overflow="ellipsis")
            table.add_row(str(hand.number), str(hand.pid), fate)
        return table
