"""A worker's live status line: running and finished messages, and the rate."""

from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol, Self

from holdfast.cli.console import make_console
from holdfast.cli.durations import format_duration
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from holdfast.core.events import Event

_END_EVENTS = ("Completed", "Retried", "DeadLettered", "GivenBack", "MessageLeaseLost")
_MAX_READINGS = 100  # that the rate is computed from, about ten seconds


class EventCounts:
    """A subscriber that counts events by kind, and the running messages."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._running: set[tuple[str, int]] = set()

    def __call__(self, event: "Event") -> None:
        kind = type(event).__name__
        self.counts[kind] += 1
        if kind == "Claimed":
            self._running.add(_identify_attempt(event))
        elif kind in _END_EVENTS:
            self._running.discard(_identify_attempt(event))

    @property
    def running(self) -> int:
        """Return the number of running messages."""
        return len(self._running)


def _identify_attempt(event: "Event") -> tuple[str, int]:
    return getattr(event, "message_id", ""), getattr(event, "attempt", 0)


class LiveStatus(Protocol):
    """What is shown while work runs. It is drawn about ten times a second."""

    def draw(self) -> None:
        """Draw the current state."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class NoStatus:
    """Shows nothing, because stderr is not a terminal or log lines were requested."""

    def draw(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class StatusLine:
    """One line at the bottom of the terminal. Log lines and prints appear above it."""

    def __init__(self, name: str, counts: EventCounts) -> None:
        self._name, self._counts = name, counts
        self._started = SYSTEM_CLOCK.monotonic()
        self._done: deque[tuple[float, int]] = deque(maxlen=_MAX_READINGS)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(
            console=make_console(stderr=True), auto_refresh=False, transient=True, screen=False
        )
        self._live.start()
        self.draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self) -> None:
        """Draw the line."""
        assert self._live is not None
        now = SYSTEM_CLOCK.monotonic()
        self._done.append((now, self._counts.counts["Completed"]))
        self._live.update(self._render(now), refresh=True)

    def _render(self, now: float) -> "Text":
        from rich.text import Text

        counts = self._counts.counts
        parts = [
            (self._name, "bold"),
            (f"{self._counts.running} running", "yellow"),
            (f"{counts['Completed']:,} done", "green"),
            (f"{self._compute_rate():,.1f}/s", ""),
            (f"{counts['Retried']:,} retried" if counts["Retried"] else "", "magenta"),
            (f"{counts['DeadLettered']:,} dead" if counts["DeadLettered"] else "", "red"),
            (format_duration(now - self._started), "dim"),
            ("Ctrl-C drains", "dim"),
        ]
        texts = [Text(text, style) for text, style in parts if text]
        return Text("  ", no_wrap=True, overflow="ellipsis").join(texts)

    def _compute_rate(self) -> float:
        (then, before), (now, after) = self._done[0], self._done[-1]
        return (after - before) / (now - then) if now > then else 0.0
