"""Results as values: figures, the bars they must meet, and the charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise of the project, with the measured figure."""

    promise: str
    figure: float
    limit: float
    unit: str
    at_least: bool = True
    aim: bool = False  # an aim is shown, but missing it is not a failure
    bound: str = ""  # what limits the figure, as measured; shown if the bar is missed

    @property
    def met(self) -> bool:
        """Return whether the bar is met."""
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    @property
    def fails(self) -> bool:
        """Return whether the run fails because of this bar."""
        return not self.met and not self.aim

    @property
    def word(self) -> str:
        """Return the verdict as a word."""
        if self.aim:
            return "aim met" if self.met else "aim missed"
        return "met" if self.met else "MISSED"

    @property
    def shown(self) -> str:
        """Return the figure as text."""
        return with_unit(self.figure, self.unit)

    @property
    def explained(self) -> str:
        """Return the promise, and its measured bound if it was missed."""
        return self.promise if self.met or not self.bound else f"{self.promise}; {self.bound}"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a result, with one group of bars per label."""

    title: str
    axis: str
    labels: Sequence[str]
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a benchmark: its table, its bars and its notes."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[Bar]
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = field(default=())


def with_unit(figure: float, unit: str) -> str:
    """Return a figure with its unit."""
    digits = 0 if abs(figure) >= 1000 or figure == int(figure) else 2
    text = f"{figure:,.{digits}f}"
    return f"{text} {unit}".strip()


def ratio(holdfast: Sequence[float], rival: Sequence[float]) -> float:
    """Return the median of the rounds' ratios, because a slow round slows both sides."""
    return median(a / b for a, b in zip(holdfast, rival, strict=True))


def spread(figures: Sequence[float]) -> str:
    """Return lowest to highest, which shows how noisy the machine was."""
    return f"{min(figures):,.0f} to {max(figures):,.0f}"
