"""sqlite_power: measure what surviving a power cut costs, and what threads share of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.contender import card_named
from bench.cycle import speeds
from bench.figures import CycleFigures
from bench.holdfast import POWER_HUNDRED, POWER_ONE, open_sqlite_at
from bench.measure import filled, run_cycles
from bench.overhead import time_tasks
from bench.raw_sqlite import RAW_FULL_FOUR, RAW_FULL_HUNDRED, RAW_FULL_ONE
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread

NAME = "sqlite_power"
TITLE = "SQLite queue: surviving a power cut"
CARDS = (POWER_ONE, RAW_FULL_ONE, POWER_HUNDRED, RAW_FULL_HUNDRED, RAW_FULL_FOUR)
WORKERS = {"worker, one thread": 1, "worker, four threads": 4}

Measured = Mapping[str, Sequence[float]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    measured: dict[str, list[float]] = defaultdict(list)
    for name in session.interleaved(TITLE, [*(card.name for card in CARDS), *WORKERS]):
        with session.arena.room(name) as path:
            if name in WORKERS:
                measured[name].append(_measure_worker(session, path, WORKERS[name]))
            else:
                measured[name] += speeds([_measure_cycles(session, path, name)])
    return _result(measured)


def _measure_cycles(session: Session, path: Path, name: str) -> CycleFigures:
    card = card_named(name)
    count = session.size(2_000, 400) * (1 if card.batch == 1 else 10)
    queue = filled(session, card, path, count)
    return in_fresh_process(run_cycles, name, queue, count, session.max_seconds / 2)


def _measure_worker(session: Session, path: Path, threads: int) -> float:
    count = session.size(5_000, 1_000)
    queue = filled(session, POWER_ONE, path, count)
    return in_fresh_process(tasks_per_second, queue, threads, count)


def tasks_per_second(path: Path, threads: int, count: int) -> float:
    """Measure a worker from its first task to the last, with an empty handler."""
    queue = open_sqlite_at(path, durability="power")
    times = time_tasks(queue, threads)
    queue.close()
    assert len(times) == count, f"{len(times):,} of {count:,} were handled"
    return (count - 1) / (max(times) - min(times))


def _result(measured: Measured) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "messages/s", "lowest to highest"),
        rows=[
            [name, f"{median(rates):,.0f}", spread(rates)] for name, rates in measured.items()
        ],
        bars=_bars(measured),
        notes=(
            'Holdfast with durability="power" beside raw SQLite with synchronous=FULL, each '
            "in full cycles of push, claim and complete.",
            "The workers claim and complete what waits, with an empty handler. One thread "
            "shares commits among the messages that it claimed ahead, so more add little.",
        ),
    )


def _bars(measured: Measured) -> list[Bar]:
    one = ratio(measured[RAW_FULL_ONE.name], measured[POWER_ONE.name])
    hundred = ratio(measured[RAW_FULL_HUNDRED.name], measured[POWER_HUNDRED.name])
    four_threads = ratio(measured["worker, four threads"], measured["worker, one thread"])
    four_shared = ratio(measured[RAW_FULL_FOUR.name], measured[RAW_FULL_ONE.name])
    return [
        Bar("one by one at most 1.3 × the time of raw SQLite", one, 1.3, "×", at_least=False),
        Bar(
            "batches of 100 at most 1.6 × the time of raw SQLite",
            hundred,
            1.6,
            "×",
            at_least=False,
        ),
        Bar(
            "four threads at least 2.5 × the rate of one",
            four_threads,
            2.5,
            "×",
            bound=f"raw SQLite with four messages in a commit reaches {four_shared:.2f} ×",
        ),
    ]
