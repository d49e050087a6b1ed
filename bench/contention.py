"""contention and sqlite_contention: claim and complete by 1, 2 and 4 processes at once."""

import multiprocessing
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import monotonic, sleep

from bench.contender import Card, get_cards
from bench.cycles import fill_queue
from bench.own_queues import FILES, RAW, SQLITE, SQLITE_BATCHED, TYPED
from bench.peers import PEERS, SQLITE_PEERS
from bench.report import Bar, Chart, Result, at_most
from bench.session import Figures, Session

PROCESSES = (1, 2, 4)
EMPTY_ANSWERS = 50  # a peer may return nothing because it lost a race

Share = tuple[float, float, list[str], int]  # begin, end, what was claimed, and errors


def run_contention(session: Session) -> Result:
    """Let files compete."""
    title = "Claim and complete by competing processes"
    return _race_all(session, title, (FILES, *PEERS), PEERS)


def run_sqlite_contention(session: Session) -> Result:
    """Let processes compete on one database."""
    title = "SQLite queue: claim and complete by competing processes"
    cards = (SQLITE, FILES, RAW, TYPED, *SQLITE_PEERS, SQLITE_BATCHED)
    return _race_all(session, title, cards, SQLITE_PEERS, bound=RAW)


def _race_all(
    session: Session,
    title: str,
    cards: Sequence[Card],
    peers: Sequence[Card],
    bound: Card | None = None,
) -> Result:
    """Race each contender with each number of processes. The first one has the bars."""
    contenders = {
        _label(card, number): partial(_race, session, card, number)
        for number in PROCESSES
        for card in cards
    }
    measured = session.measure(title, contenders, rounds=min(session.rounds, 3))
    own, bars = cards[0], []
    for number in PROCESSES:
        best = measured.find_best([_label(peer, number) for peer in peers])
        promise = f"ahead of every peer with {number} competing (best: {best})"
        limit = measured.ratio(_label(bound, number), best) if bound else 0.0
        lead = measured.ratio(_label(own, number), best)
        text = f"{bound.name} reaches {limit:.2f} ×" if bound else ""
        bars.append(Bar(promise, lead, 1.0, "×", bound=text))

    def add_up(card: Card, figure: str) -> float:
        return sum(measured.sum(_label(card, number), figure) for number in PROCESSES)

    rates = {
        card.name: [measured.median(_label(card, number)) for number in PROCESSES]
        for card in cards
    }
    header = [f"{number} process{'es' * (number > 1)}" for number in PROCESSES]
    return Result(
        title,
        ("messages/s", *header, "delivered twice", "errors"),
        [
            [
                card.name,
                *(f"{rate:,.0f}" for rate in rates[card.name]),
                *(f"{add_up(card, figure):,.0f}" for figure in ("twice", "errors")),
            ]
            for card in cards
        ],
        [*bars, at_most("nothing delivered twice", add_up(own, "twice"), 0)],
        measured,
        charts=[Chart(title, "messages per second", header, rates)],
    )


def _label(card: Card, processes: int) -> str:
    return f"{card.name}, {processes} processes"


def _race(session: Session, card: Card, processes: int) -> Figures:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(processes)
    pipes, runners = [], []
    with session.arena.room(card.name) as path:
        queue = fill_queue(session, card, path, session.size(10_000, 2_000))
        for _ in range(processes):
            receiver, sender = spawn.Pipe(duplex=False)
            args = (card.name, queue, session.max_seconds, start, sender)
            runners.append(spawn.Process(target=drain, args=args))
            runners[-1].start()
            sender.close()
            pipes.append(receiver)
        shares: list[Share] = [pipe.recv() for pipe in pipes]
        for runner in runners:
            runner.join()
    began, ended, claimed, errors = zip(*shares, strict=True)
    delivered = Counter(identity for identities in claimed for identity in identities)
    return {
        "rate": len(delivered) / (max(ended) - min(began)),
        "twice": delivered.total() - len(delivered),
        "errors": sum(errors),
    }


def drain(
    name: str, path: Path, max_seconds: float, start: Barrier, answer: Connection
) -> None:
    """Claim and complete until the queue stays empty or the time is over."""
    queue = get_cards()[name].open(path)
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
        claims += claimed if isinstance(claimed, list) else [claimed]
    answer.send((began, ended, [queue.identity(claimed) for claimed in claims], errors))
    queue.close()
