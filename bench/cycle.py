"""cycle: measure push, claim and complete in one process, while 10,000 others wait."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from bench import floor
from bench.bare import BARE
from bench.figures import CycleFigures
from bench.holdfast import BATCHED, HOLDFAST, PREBUILT
from bench.measure import filled, run_cycles
from bench.peers import PEERS
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Chart, Result, ratio, spread

NAME = "cycle"
TITLE = "Full cycle with 10,000 waiting"
WAITING = 10_000
CARDS = (BARE, HOLDFAST, PREBUILT, BATCHED, *PEERS)

Measured = Mapping[str, Sequence[CycleFigures]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    cycles = session.size(10_000, 2_000)
    cards = {card.name: card for card in CARDS}
    measured: dict[str, list[CycleFigures]] = defaultdict(list)
    for name in session.interleaved(TITLE, [floor.NAME, *cards]):
        with session.arena.room(name) as path:
            if name == floor.NAME:
                session.floor.fill(path, WAITING)
                session.arena.settle(path)
                figures = session.floor.cycle(path, cycles)
            else:
                queue = filled(session, cards[name], path, WAITING)
                figures = in_fresh_process(run_cycles, name, queue, cycles, session.max_seconds)
            measured[name].append(figures)
    return _result(measured, session.max_seconds)


def _result(measured: Measured, max_seconds: float) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            "cycles/s",
            "lowest to highest",
            "µs: push",
            "claim",
            "complete",
            "killed worker: redelivered?",
        ),
        rows=[_row(name, measured[name]) for name in _by_speed(measured)],
        bars=_bars(measured),
        notes=(
            "Holdfast builds, serialises, parses and validates a typed message in the measured "
            "time; the peers move finished JSON of the same 300 bytes. No bar uses the "
            "prebuilt and the batched line.",
            "No queue in Python that keeps one file per message and moves it by renames can be "
            "faster than the bare calls from Python.",
            f"A round ends after {max_seconds:.0f} s at the latest.",
        ),
        charts=[_chart(measured)],
    )


def speeds(figures: Sequence[CycleFigures]) -> list[float]:
    """Return the rates of some measurements."""
    return [figure.per_second for figure in figures]


def _by_speed(measured: Measured) -> list[str]:
    return sorted(measured, key=lambda name: -median(speeds(measured[name])))


def _row(name: str, figures: Sequence[CycleFigures]) -> list[str]:
    cards = {card.name: card for card in CARDS}
    card = cards.get(name)
    parts = [
        f"{median(getattr(figure, part) / figure.cycles for figure in figures) * 1e6:,.1f}"
        for part in ("push", "claim", "done")
    ]
    label = f"{name} ({card.api})" if card else name
    rate = f"{median(speeds(figures)):,.0f}"
    return [label, rate, spread(speeds(figures)), *parts, card.redelivers if card else ""]


def _bars(measured: Measured) -> list[Bar]:
    holdfast = speeds(measured[HOLDFAST.name])
    dirq = ratio(holdfast, speeds(measured["dirq"]))
    best = max(
        (card for card in PEERS if card.survives),
        key=lambda card: median(speeds(measured[card.name])),
    )
    against_best = ratio(holdfast, speeds(measured[best.name]))
    bare = ratio(speeds(measured[floor.NAME]), holdfast)
    return [
        Bar("at least 1.5 × dirq QueueSimple", dirq, 1.5, "×"),
        Bar("2 × dirq QueueSimple", dirq, 2.0, "×", aim=True),
        Bar(
            f"ahead of every peer that keeps a killed worker's message (best: {best.name})",
            against_best,
            1.0,
            "×",
        ),
        Bar("at most 2 × the time of the bare system calls", bare, 2.0, "×", at_least=False),
        Bar(
            "1.25 × the time of the bare system calls",
            bare,
            1.25,
            "×",
            at_least=False,
            aim=True,
        ),
    ]


def _chart(measured: Measured) -> Chart:
    values = {name: [median(speeds(measured[name]))] for name in _by_speed(measured)}
    return Chart(TITLE, "cycles per second", [""], values)
