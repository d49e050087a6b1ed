"""backlog: measure the same cycle with a million waiting, and its memory."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import floor
from bench.contender import card_named
from bench.cycle import speeds
from bench.figures import MIB, CycleFigures
from bench.holdfast import HOLDFAST
from bench.measure import filled, run_cycles
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Chart, Result, ratio, spread

NAME = "backlog"
TITLE = "Full cycle with a million waiting"
FEW = 10_000
IMAGE_GIB = 12
MEMORY_SLACK_MIB = 8
COLUMNS = ("", "cycles/s", "lowest to highest", "peak memory of the worker")

Measured = Mapping["Load", Sequence[CycleFigures]]


@dataclass(frozen=True, slots=True)
class Load:
    """A contender and its number of waiting messages."""

    name: str
    waiting: int

    def __str__(self) -> str:
        return f"{self.name}, {self.waiting:,} waiting"


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    many = count_many(session)
    return _result(measure_loads(session, TITLE, (floor.NAME, HOLDFAST.name, "dirq")), many)


def count_many(session: Session) -> int:
    """Return how many wait in the large backlog."""
    return session.size(1_000_000, 50_000)


def measure_loads(session: Session, title: str, names: Sequence[str]) -> Measured:
    """Measure each contender with few and with many waiting."""
    cycles, many = session.size(10_000, 2_000), count_many(session)
    loads = [Load(name, waiting) for waiting in (FEW, many) for name in names]
    measured: dict[Load, list[CycleFigures]] = defaultdict(list)
    with ExitStack() as rooms:
        kept = _fill_many(session, rooms, [load for load in loads if load.waiting == many])
        for load in session.interleaved(title, loads):
            if load in kept:
                measured[load].append(_measure(session, load, kept[load], cycles))
            else:
                measured[load].append(_measure_fresh(session, load, cycles))
    return measured


def _fill_many(session: Session, rooms: ExitStack, loads: Sequence[Load]) -> dict[Load, Path]:
    """A million takes a while to push: filled once, and kept through all rounds."""
    kept = {}
    for load in loads:
        path = rooms.enter_context(session.arena.room(load.name, gib=IMAGE_GIB))
        with session.console.status(f"filling {load}"):
            kept[load] = _fill(session, load, path)
    return kept


def _fill(session: Session, load: Load, path: Path) -> Path:
    if load.name == floor.NAME:
        session.floor.fill(path, load.waiting)
        session.arena.settle(path)
        return path
    return filled(session, card_named(load.name), path, load.waiting)


def _measure_fresh(session: Session, load: Load, cycles: int) -> CycleFigures:
    with session.arena.room(load.name, gib=IMAGE_GIB) as path:
        return _measure(session, load, _fill(session, load, path), cycles)


def _measure(session: Session, load: Load, path: Path, cycles: int) -> CycleFigures:
    if load.name == floor.NAME:
        return session.floor.cycle(path, cycles)
    return in_fresh_process(run_cycles, load.name, path, cycles, session.max_seconds)


def _result(measured: Measured, many: int) -> Result:
    return Result(
        name=NAME,
        title=TITLE if many == 1_000_000 else f"Full cycle with {many:,} waiting",
        columns=COLUMNS,
        rows=make_rows(measured),
        bars=_bars(measured, many),
        notes=(
            "The million is pushed once and kept through all rounds; every round is a new "
            "process. dirq's million is begun on a full minute, because it cuts its folders by "
            "the minute, and the first 100 cycles, which pay for its listing, are not counted.",
        ),
        charts=[_chart(measured, many)],
    )


def make_rows(measured: Measured) -> list[list[str]]:
    """Return a row for each load."""
    return [_row(load, figures) for load, figures in measured.items()]


def _row(load: Load, figures: Sequence[CycleFigures]) -> list[str]:
    peak = max(figure.peak_bytes for figure in figures) / MIB
    rates = speeds(figures)
    memory = f"{peak:,.0f} MiB" if peak else ""
    return [str(load), f"{median(rates):,.0f}", spread(rates), memory]


def _bars(measured: Measured, many: int) -> list[Bar]:
    holdfast, few = measured[Load(HOLDFAST.name, many)], measured[Load(HOLDFAST.name, FEW)]
    kept = ratio(speeds(holdfast), speeds(few)) * 100
    dirq = ratio(speeds(holdfast), speeds(measured[Load("dirq", many)]))
    growth = (_median_peak(holdfast) - _median_peak(few)) / MIB
    return [
        Bar(f"at least 90 % of the throughput with {FEW:,}", kept, 90, "%"),
        Bar("at least 5 × dirq", dirq, 5, "×"),
        Bar(
            f"memory grows by no more than {MEMORY_SLACK_MIB} MiB",
            growth,
            MEMORY_SLACK_MIB,
            "MiB",
            at_least=False,
        ),
    ]


def _median_peak(figures: Sequence[CycleFigures]) -> float:
    return median(figure.peak_bytes for figure in figures)


def _chart(measured: Measured, many: int) -> Chart:
    names = dict.fromkeys(load.name for load in measured)
    return Chart(
        title="Full cycle by backlog",
        axis="cycles per second",
        labels=[f"{FEW:,} waiting", f"{many:,} waiting"],
        values={
            name: [median(speeds(measured[Load(name, waiting)])) for waiting in (FEW, many)]
            for name in names
        },
    )
