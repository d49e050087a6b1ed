"""The live view of a queue: counts, a bar with each state's share, and the rate."""

from collections import deque
from typing import TYPE_CHECKING

from holdfast.cli.durations import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from holdfast.core.queue.manager import QueueStats

_MAX_READINGS = 30  # that the rate is computed from
_WIDTH = 60

SHADES = {
    "completed": "green",
    "leased": "yellow",
    "ready": "blue",
    "delayed": "cyan",
    "failed": "red",
}


class QueueView:
    """A queue's counts over time, drawn for a terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._readings: deque[tuple[float, QueueStats]] = deque(maxlen=_MAX_READINGS)

    def record(self, stats: "QueueStats", at: float) -> None:
        """Record a reading of the queue's counts."""
        self._readings.append((at, stats))

    @property
    def per_second(self) -> float:
        """Return how many messages were finished per second, if the queue counts that."""
        (then, before), (now, after) = self._readings[0], self._readings[-1]
        finished = _count_finished(after) - _count_finished(before)
        return max(0.0, finished / (now - then)) if now > then else 0.0

    def render(self) -> "RenderableType":
        """Return the view as rich draws it."""
        from rich.console import Group
        from rich.text import Text

        stats = self._readings[-1][1]
        lines = [Text(self._name, style="bold"), draw_bar(stats), draw_legend(stats)]
        return Group(*lines, *([] if stats.completed is None else [self._render_rate()]))

    def _render_rate(self) -> "Text":
        from rich.text import Text

        stats = self._readings[-1][1]
        text = f"{self.per_second:,.1f} per second"
        if self.per_second > 0 and stats.ready:
            text += f", {format_duration(stats.ready / self.per_second)} left"
        if stats.expired:
            text += f"; {stats.expired} expired leases"
        return Text(text, style="dim")


def _count_finished(stats: "QueueStats") -> int:
    return (stats.completed or 0) + stats.failed


def _list_counts(stats: "QueueStats") -> list[tuple[str, int]]:
    """Return (state, count) of each state that the queue counts."""
    counts = [(name, getattr(stats, name)) for name in SHADES]
    return [(name, count) for name, count in counts if count is not None]


def draw_bar(stats: "QueueStats", width: int = _WIDTH) -> "Text":
    """Return a bar with each state's share. A count above zero gets at least one cell."""
    from rich.text import Text

    counts = {SHADES[name]: count for name, count in _list_counts(stats)}
    total = sum(counts.values())
    if not total:
        return Text("━" * width, style="dim")
    cells = {shade: max(1, n * width // total) for shade, n in counts.items() if n}
    largest = max(cells, key=lambda shade: cells[shade])
    cells[largest] += width - sum(cells.values())  # put the rounding error where it shows least
    return Text.assemble(*(("━" * n, shade) for shade, n in cells.items()))


def draw_legend(stats: "QueueStats") -> "Text":
    """Return each state with its count."""
    from rich.text import Text

    text = Text()
    for name, count in _list_counts(stats):
        text.append(f"{name} ", style=SHADES[name])
        text.append(f"{count:,}   ")
    return text
