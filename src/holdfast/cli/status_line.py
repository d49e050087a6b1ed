"""A worker's live line: what it has done, what it does, how fast."""

from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol, Self

from holdfast.cli.console import terminal
from holdfast.cli.durations import in_words
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from holdfast.core.events import Event

_ENDS = ("Completed", "Retried", "DeadLettered", "GivenBack", "MessageLeaseLost")
_REMEMBERED = 100  # readings the pace is taken from: about ten seconds


class EventCounts:
    """A subscriber that counts events by kind, and knows what is running."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._running: set[tuple[str, int]] = set()

    def __call__(self, event: "Event") -> None:
        kind = type(event).__name__
        self.counts[kind] += 1
        if kind == "Claimed":
            self._running.add(_which(event))
        elif kind in _ENDS:
            self._running.discard(_which(event))

    @property
    def running(self) -> int:
        return len(self._running)


def _which(event: "Event") -> tuple[str, int]:
    return getattr(event, "message_id", ""), getattr(event, "attempt", 0)


class LiveStatus(Protocol):
    """What is shown while something runs. Drawn about ten times a second."""

    def draw(self) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class NoStatus:
    """No live line: nobody is watching, or log lines were asked for."""

    def draw(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class StatusLine:
    """One line at the bottom of the terminal; log lines and prints appear above it."""

    def __init__(self, name: str, tally: EventCounts) -> None:
        self._name, self._tally = name, tally
        self._started = SYSTEM_CLOCK.monotonic()
        self._done: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(
            console=terminal(stderr=True), auto_refresh=False, transient=True, screen=False
        )
        self._live.start()
        self.draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self) -> None:
        assert self._live is not None
        now = SYSTEM_CLOCK.monotonic()
        self._done.append((now, self._tally.counts["Completed"]))
        self._live.update(self._line(now), refresh=True)

    def _line(self, now: float) -> "Text":
        from rich.text import Text

        count = self._tally.counts
        parts = [
            (self._name, "bold"),
            (f"{self._tally.running} running", "yellow"),
            (f"{count['Completed']:,} done", "green"),
            (f"{self._per_second():,.1f}/s", ""),
            (f"{count['Retried']:,} retried" if count["Retried"] else "", "magenta"),
            (f"{count['DeadLettered']:,} dead" if count["DeadLettered"] else "", "red"),
            (in_words(now - self._started), "dim"),
            ("Ctrl-C drains", "dim"),
        ]
        shown = [Text(text, style) for text, style in parts if text]
        return Text("  ", no_wrap=True, overflow="ellipsis").join(shown)

    def _per_second(self) -> float:
        (then, before), (now, after) = self._done[0], self._done[-1]
        return (after - before) / (now - then) if now > then else 0.0
