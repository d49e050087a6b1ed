"""contention: measure claim and complete by 1, 2 and 4 processes at once."""

import multiprocessing
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from bench.contender import Contender, card_named
from bench.holdfast import HOLDFAST
from bench.measure import filled
from bench.peers import PEERS
from bench.session import Session
from bench.verdict import Bar, Chart, Result, ratio

NAME = "contention"
TITLE = "Claim and complete by competing processes"
PROCESSES = (1, 2, 4)
EMPTY_ANSWERS = 50  # a peer may return nothing because it lost a race
_HEADER = [f"{processes} process{'es' * (processes > 1)}" for processes in PROCESSES]
COLUMNS = ("messages/s", *_HEADER, "delivered twice", "errors")


@dataclass(frozen=True, slots=True)
class Crowd:
    """A contender and its number of processes."""

    name: str
    processes: int

    def __str__(self) -> str:
        return f"{self.name}, {self.processes} processes"


@dataclass(frozen=True, slots=True)
class Share:
    """The result of one process. Times are of the machine's monotonic clock."""

    began: float
    ended: float
    identities: list[str]
    errors: int


@dataclass(frozen=True, slots=True)
class Race:
    """The result of a race."""

    per_second: float
    duplicates: int
    errors: int


Measured = Mapping[Crowd, Sequence[Race]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    peers = [card.name for card in PEERS]
    measured = race_all(session, TITLE, [HOLDFAST.name, *peers], session.max_seconds)
    return Result(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=make_rows(measured),
        bars=make_bars(measured, HOLDFAST.name, peers),
        notes=(make_note(session, session.max_seconds),),
        charts=[make_chart(TITLE, measured)],
    )


def race_all(
    session: Session, title: str, names: Sequence[str], max_seconds: float
) -> Measured:
    """Race each contender with each number of processes."""
    crowds = [Crowd(name, processes) for processes in PROCESSES for name in names]
    measured: dict[Crowd, list[Race]] = defaultdict(list)
    for crowd in session.interleaved(title, crowds, rounds=min(session.rounds, 3)):
        with session.arena.room(crowd.name) as path:
            queue = filled(session, card_named(crowd.name), path, _count_waiting(session))
            measured[crowd].append(_race(crowd, queue, max_seconds))
    return measured


def _count_waiting(session: Session) -> int:
    return session.size(10_000, 2_000)


def _race(crowd: Crowd, path: Path, max_seconds: float) -> Race:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(crowd.processes)
    pipes, runners = [], []
    for _ in range(crowd.processes):
        receiver, sender = spawn.Pipe(duplex=False)
        runner = spawn.Process(
            target=drain, args=(crowd.name, path, max_seconds, start, sender)
        )
        runner.start()
        sender.close()
        pipes.append(receiver)
        runners.append(runner)
    shares: list[Share] = [pipe.recv() for pipe in pipes]
    for runner in runners:
        runner.join()
    return _sum_up(shares)


def drain(
    name: str, path: Path, max_seconds: float, start: Barrier, answer: Connection
) -> None:
    """Claim and complete until the queue stays empty or the time is over."""
    queue = card_named(name).open(path)
    claims, errors, misses = [], 0, 0
    start.wait()
    began = ended = monotonic()
    while misses < EMPTY_ANSWERS and ended - began < max_seconds:
        try:
            claimed = queue.claim()
            if claimed is not None:
                queue.done(claimed)
        except Exception:  # some peers fail under contention, which is counted
            errors += 1
            claimed = None
        if claimed is None:
            misses += 1
            sleep(0.001)
            continue
        misses = 0
        ended = monotonic()
        claims.append(claimed)
    answer.send(Share(began, ended, _identify(queue, claims), errors))
    queue.close()


def _identify(queue: Contender, claims: Sequence[Any]) -> list[str]:
    """Return which payloads were claimed, one by one or in batches."""
    batches = (claim if isinstance(claim, list) else [claim] for claim in claims)
    return [queue.identity(claimed) for batch in batches for claimed in batch]


def _sum_up(shares: Sequence[Share]) -> Race:
    delivered = Counter(identity for share in shares for identity in share.identities)
    seconds = max(share.ended for share in shares) - min(share.began for share in shares)
    return Race(
        per_second=len(delivered) / seconds,
        duplicates=delivered.total() - len(delivered),
        errors=sum(share.errors for share in shares),
    )


def make_note(session: Session, max_seconds: float) -> str:
    """Return how a race begins and ends."""
    return (
        f"{_count_waiting(session):,} waiting at the start; a race ends when the queue is "
        f"empty or after {max_seconds:g} s. A message delivered twice counts once."
    )


def make_rows(measured: Measured) -> list[list[str]]:
    """Return a row for each contender."""
    return [_row(measured, name) for name in _names(measured)]


def make_bars(
    measured: Measured, holdfast: str, peers: Sequence[str], bound: str = ""
) -> list[Bar]:
    """Return the bars of a queue. `bound` is a contender that no queue of its kind can beat."""
    ahead = [_ahead(measured, holdfast, peers, number, bound) for number in PROCESSES]
    return [*ahead, _twice(measured, holdfast)]


def _names(measured: Measured) -> list[str]:
    return list(dict.fromkeys(crowd.name for crowd in measured))


def _rates(measured: Measured, name: str, processes: int) -> list[float]:
    return [race.per_second for race in measured[Crowd(name, processes)]]


def _row(measured: Measured, name: str) -> list[str]:
    races = [race for number in PROCESSES for race in measured[Crowd(name, number)]]
    rates = [f"{median(_rates(measured, name, number)):,.0f}" for number in PROCESSES]
    twice, errors = sum(race.duplicates for race in races), sum(race.errors for race in races)
    return [name, *rates, f"{twice:,}", f"{errors:,}"]


def _ahead(
    measured: Measured, holdfast: str, peers: Sequence[str], processes: int, bound: str
) -> Bar:
    best = max(peers, key=lambda name: median(_rates(measured, name, processes)))

    def lead(name: str) -> float:
        return ratio(_rates(measured, name, processes), _rates(measured, best, processes))

    promise = f"ahead of every peer with {processes} competing (best: {best})"
    limited = f"{bound} reaches {lead(bound):.2f} ×" if bound else ""
    return Bar(promise, lead(holdfast), 1.0, "×", bound=limited)


def _twice(measured: Measured, holdfast: str) -> Bar:
    races = [race for number in PROCESSES for race in measured[Crowd(holdfast, number)]]
    twice = sum(race.duplicates for race in races)
    return Bar("nothing delivered twice", twice, 0, "", at_least=False)


def make_chart(title: str, measured: Measured) -> Chart:
    """Return a chart of the rates by the number of processes."""
    values = {
        name: [median(_rates(measured, name, number)) for number in PROCESSES]
        for name in _names(measured)
    }
    return Chart(title, "messages per second", _HEADER, values)
