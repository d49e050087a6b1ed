"""What a terminal shows while a command works: a status line, a live view, or a bar."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from holdfast.cli.console import is_terminal, make_console
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.text import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress
    from rich.text import Text

    from holdfast.events import Event

_END_EVENTS = ("Completed", "Retried", "DeadLettered", "GivenBack", "MessageLeaseLost")
_METER_AFTER_SECONDS = 0.5


class LiveStatus:
    """What is shown while work runs. It is drawn every `draw_seconds`, or never.

    `hint` says what Ctrl-C does next. This status shows nothing, because stderr is not a
    terminal or log lines were requested.
    """

    draw_seconds: float | None = None
    hint: str = "Ctrl-C drains"

    def draw(self) -> None:
        """Draw the current state."""

    def show_hint(self, hint: str) -> None:
        """Change the hint, and draw it at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class LiveView(LiveStatus):
    """Redraws a view at the bottom of the terminal. Log lines and prints appear above it."""

    def __init__(
        self,
        render: "Callable[[str], RenderableType]",
        draw_seconds: float = 0.1,
        *,
        screen: bool = False,
    ) -> None:
        """`render` gets the hint and returns the view, which may fill the `screen`."""
        from rich.live import Live

        self._render, self.draw_seconds = render, draw_seconds
        console = make_console(stderr=not screen)
        # Log lines hold ids and commands. A line that rich wraps cannot be copied.
        console.soft_wrap = not screen
        self._live = Live(console=console, auto_refresh=False, transient=True, screen=screen)

    def __enter__(self) -> Self:
        # Nothing is drawn here. A view that cannot be drawn, or Ctrl-C meanwhile, must find
        # the block entered, because only its end gives the screen back.
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show_hint(self, hint: str) -> None:
        """Change the hint, and draw it at once."""
        self.hint = hint
        self.draw()

    def draw(self) -> None:
        """Draw the current state."""
        self._live.update(self._render(self.hint), refresh=True)


def repeat(show: Callable[[], object], every: float) -> None:
    """Call a function from time to time until Ctrl-C, which is the normal way to end this."""
    try:
        while True:
            show()
            SYSTEM_CLOCK.sleep(max(every, 0.1))
    except KeyboardInterrupt:
        return


class Rate:
    """How fast counts grow, from the readings of the last seconds, or the last two."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._readings: deque[tuple[float, Sequence[int]]] = deque()

    def record(self, now: float, *counts: int) -> None:
        """Record a reading."""
        self._readings.append((now, counts))
        while len(self._readings) > 2 and now - self._readings[0][0] > self._window_seconds:
            self._readings.popleft()

    def per_second(self, column: int = 0) -> float:
        """Return the growth per second of one of the counts."""
        (then, before), (now, after) = self._readings[0], self._readings[-1]
        grown = after[column] - before[column]
        return max(0.0, grown / (now - then)) if now > then else 0.0


def join_texts(parts: "Sequence[tuple[str, str]]") -> "Text":
    """Return one line of (text, style), without the empty ones."""
    from rich.text import Text

    texts = [Text(text, style) for text, style in parts if text]
    return Text("  ", no_wrap=True, overflow="ellipsis").join(texts)


# -- workers


class EventCounts:
    """A subscriber that counts events by kind, and the running messages."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._running: set[tuple[str, int]] = set()

    def __call__(self, event: "Event") -> None:
        kind = type(event).__name__
        self.counts[kind] += 1
        attempt = getattr(event, "message_id", ""), getattr(event, "attempt", 0)
        if kind == "Claimed":
            self._running.add(attempt)
        elif kind in _END_EVENTS:
            self._running.discard(attempt)

    @property
    def running(self) -> int:
        """Return the number of running messages."""
        return len(self._running)

    def show(self, name: str) -> LiveView:
        """Return a live line with running and finished messages, and the rate."""
        started, rate = SYSTEM_CLOCK.monotonic(), Rate(window_seconds=10.0)

        def render(hint: str) -> "Text":
            now, counts = SYSTEM_CLOCK.monotonic(), self.counts
            rate.record(now, counts["Completed"])
            return join_texts(
                [
                    (name, "bold"),
                    (f"{self.running} running", "yellow"),
                    (f"{counts['Completed']:,} done", "green"),
                    (f"{rate.per_second():,.1f}/s", ""),
                    (f"{counts['Retried']:,} retried" if counts["Retried"] else "", "magenta"),
                    (
                        f"{counts['DeadLettered']:,} dead" if counts["DeadLettered"] else "",
                        "red",
                    ),
                    (format_duration(now - started), "dim"),
                    (hint, "dim"),
                ]
            )

        return LiveView(render)


# -- commands that end by themselves


class ProgressMeter:
    """A counter that shows a progress bar on a terminal after half a second."""

    def __init__(self, activity: str, total: int | None = None) -> None:
        self._activity, self.total = activity, total
        self._show_at = SYSTEM_CLOCK.monotonic() + _METER_AFTER_SECONDS
        self._bar: Progress | None = None
        self.count = 0

    def advance(self, by: int) -> None:
        """Add to the count."""
        self.count += by
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.count)
        elif is_terminal() and SYSTEM_CLOCK.monotonic() >= self._show_at:
            self._bar = self._show()

    def _show(self) -> "Progress":
        from rich import progress

        bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=make_console(stderr=True),
            transient=True,
        )
        bar.add_task(self._activity, total=self.total, completed=self.count)
        bar.start()
        return bar

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
