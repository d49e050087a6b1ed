"""Results as values: figures, the bars they must clear, and what to show of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise of the project with the figure measured for it."""

    promise: str
    figure: float
    limit: float
    unit: str
    at_least: bool = True
    aim: bool = False  # an aim is shown, and missing it fails nothing

    @property
    def met(self) -> bool:
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    @property
    def fails(self) -> bool:
        return not self.met and not self.aim

    @property
    def word(self) -> str:
        if self.aim:
            return "aim met" if self.met else "aim missed"
        return "met" if self.met else "MISSED"

    @property
    def shown(self) -> str:
        return with_unit(self.figure, self.unit)


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a result: values per contender, one group of bars per label."""

    title: str
    axis: str
    labels: Sequence[str]
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark: its table, its bars, and what a reader must know."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[Bar]
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = field(default=())


def with_unit(figure: float, unit: str) -> str:
    digits = 0 if abs(figure) >= 1000 or figure == int(figure) else 2
    text = f"{figure:,.{digits}f}"
    return f"{text} {unit}".strip()


def ratio(holdfast: Sequence[float], rival: Sequence[float]) -> float:
    """The median of the rounds' ratios: what slows one round slows both its sides."""
    return median(a / b for a, b in zip(holdfast, rival, strict=True))


def spread(figures: Sequence[float]) -> str:
    """Lowest to highest, so that a reader sees how noisy the machine was."""
    return f"{min(figures):,.0f} to {max(figures):,.0f}"
