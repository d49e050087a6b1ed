"""The live picture of a queue: counts, a bar of where everything is, and the pace."""

from collections import deque
from typing import TYPE_CHECKING

from holdfast.cli.durations import in_words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from holdfast.core.queue.manager import QueueStats

_REMEMBERED = 30  # readings the pace is taken from
_WIDTH = 60

SHADES = {
    "completed": "green",
    "leased": "yellow",
    "ready": "blue",
    "delayed": "cyan",
    "failed": "red",
}


class Board:
    def __init__(self, name: str) -> None:
        self._name = name
        self._readings: deque[tuple[float, QueueStats]] = deque(maxlen=_REMEMBERED)

    def note(self, stats: "QueueStats", at: float) -> None:
        self._readings.append((at, stats))

    @property
    def per_second(self) -> float:
        """How many were finished per second, where the queue keeps books of that."""
        (then, before), (now, after) = self._readings[0], self._readings[-1]
        finished = _finished(after) - _finished(before)
        return max(0.0, finished / (now - then)) if now > then else 0.0

    def picture(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        stats = self._readings[-1][1]
        lines = [Text(self._name, style="bold"), bar(stats), legend(stats)]
        return Group(*lines, *([] if stats.completed is None else [self._pace()]))

    def _pace(self) -> "Text":
        from rich.text import Text

        stats = self._readings[-1][1]
        words = f"{self.per_second:,.1f} per second"
        if self.per_second > 0 and stats.ready:
            words += f", {in_words(stats.ready / self.per_second)} to go"
        if stats.expired:
            words += f"; {stats.expired} leases have run out"
        return Text(words, style="dim")


def _finished(stats: "QueueStats") -> int:
    return (stats.completed or 0) + stats.failed


def _counts(stats: "QueueStats") -> list[tuple[str, int]]:
    """By state; what the queue does not count is left out."""
    counts = [(name, getattr(stats, name)) for name in SHADES]
    return [(name, count) for name, count in counts if count is not None]


def bar(stats: "QueueStats", width: int = _WIDTH) -> "Text":
    """Each state's share; what is there is never rounded away to nothing."""
    from rich.text import Text

    counts = {SHADES[name]: count for name, count in _counts(stats)}
    total = sum(counts.values())
    if not total:
        return Text("━" * width, style="dim")
    cells = {shade: max(1, n * width // total) for shade, n in counts.items() if n}
    largest = max(cells, key=lambda shade: cells[shade])
    cells[largest] += width - sum(cells.values())  # the rounding, where it shows least
    return Text.assemble(*(("━" * n, shade) for shade, n in cells.items()))


def legend(stats: "QueueStats") -> "Text":
    from rich.text import Text

    text = Text()
    for name, count in _counts(stats):
        text.append(f"{name} ", style=SHADES[name])
        text.append(f"{count:,}   ")
    return text
