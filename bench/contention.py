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

from bench.contender import card_named
from bench.holdfast import HOLDFAST
from bench.measure import filled
from bench.peers import PEERS
from bench.session import Session
from bench.verdict import Bar, Chart, Result, ratio

NAME = "contention"
TITLE = "Claim and complete by competing processes"
PROCESSES = (1, 2, 4)
EMPTY_ANSWERS = 50  # a peer may return nothing because it lost a race


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
    count = session.size(10_000, 2_000)
    names = (HOLDFAST.name, *(card.name for card in PEERS))
    crowds = [Crowd(name, processes) for processes in PROCESSES for name in names]
    measured: dict[Crowd, list[Race]] = defaultdict(list)
    for crowd in session.interleaved(TITLE, crowds, rounds=min(session.rounds, 3)):
        with session.arena.room(crowd.name) as path:
            queue = filled(session, card_named(crowd.name), path, count)
            measured[crowd].append(_race(crowd, queue, session.max_seconds))
    note = _note(count, session.max_seconds)
    return _result(measured, names, note)


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
    answer.send(Share(began, ended, [queue.identity(claim) for claim in claims], errors))
    queue.close()


def _sum_up(shares: Sequence[Share]) -> Race:
    delivered = Counter(identity for share in shares for identity in share.identities)
    seconds = max(share.ended for share in shares) - min(share.began for share in shares)
    return Race(
        per_second=len(delivered) / seconds,
        duplicates=delivered.total() - len(delivered),
        errors=sum(share.errors for share in shares),
    )


def _note(count: int, max_seconds: float) -> str:
    return (
        f"{count:,} waiting at the start; a race ends when the queue is empty or after "
        f"{max_seconds:.0f} s. A message delivered twice counts once."
    )


def _result(measured: Measured, names: Sequence[str], note: str) -> Result:
    header = [f"{processes} process{'es' * (processes > 1)}" for processes in PROCESSES]
    return Result(
        name=NAME,
        title=TITLE,
        columns=("messages/s", *header, "delivered twice", "errors"),
        rows=[_row(measured, name) for name in names],
        bars=[*(_ahead(measured, names, number) for number in PROCESSES), _twice(measured)],
        notes=(note,),
        charts=[_chart(measured, names, header)],
    )


def _rates(measured: Measured, name: str, processes: int) -> list[float]:
    return [race.per_second for race in measured[Crowd(name, processes)]]


def _row(measured: Measured, name: str) -> list[str]:
    races = [race for number in PROCESSES for race in measured[Crowd(name, number)]]
    rates = [f"{median(_rates(measured, name, number)):,.0f}" for number in PROCESSES]
    twice, errors = sum(race.duplicates for race in races), sum(race.errors for race in races)
    return [name, *rates, f"{twice:,}", f"{errors:,}"]


def _ahead(measured: Measured, names: Sequence[str], processes: int) -> Bar:
    best = max(
        (name for name in names if name != HOLDFAST.name),
        key=lambda name: median(_rates(measured, name, processes)),
    )
    holdfast = _rates(measured, HOLDFAST.name, processes)
    lead = ratio(holdfast, _rates(measured, best, processes))
    promise = f"ahead of every peer with {processes} competing (best: {best})"
    return Bar(promise, lead, 1.0, "×")


def _twice(measured: Measured) -> Bar:
    races = [race for number in PROCESSES for race in measured[Crowd(HOLDFAST.name, number)]]
    twice = sum(race.duplicates for race in races)
    return Bar("nothing delivered twice", twice, 0, "", at_least=False)


def _chart(measured: Measured, names: Sequence[str], labels: Sequence[str]) -> Chart:
    values = {
        name: [median(_rates(measured, name, number)) for number in PROCESSES] for name in names
    }
    return Chart(TITLE, "messages per second", labels, values)
