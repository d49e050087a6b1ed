"""power: measure the cost of surviving a power cut, in batches of 100."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.contender import card_named
from bench.holdfast import HOLDFAST, open_queue_at
from bench.payload import body, task
from bench.peers import PEERS
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread

NAME = "power"
TITLE = "Surviving a power cut, in batches of 100"
BATCH = 100
RAW = "raw SQLite (WAL, synchronous=FULL)"
RAW_ROLLBACK = "raw SQLite (rollback journal, synchronous=FULL)"

Step = Callable[[int], None]
Measured = Mapping[tuple[str, str], Sequence[float]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    batches, max_seconds = session.size(100, 20), session.max_seconds
    syncing = [card.name for card in PEERS if card.syncs == "disk"]
    runs = [
        *(("push", name) for name in (HOLDFAST.name, RAW, RAW_ROLLBACK, *syncing)),
        *(("cycle", name) for name in (HOLDFAST.name, RAW, RAW_ROLLBACK)),
    ]
    measured: dict[tuple[str, str], list[float]] = defaultdict(list)
    for what, name in session.interleaved(TITLE, runs):
        with session.arena.room(name) as path:
            rate = in_fresh_process(messages_per_second, what, name, path, batches, max_seconds)
            measured[what, name].append(rate)
    return _result(measured, syncing)


def messages_per_second(
    what: str, name: str, path: Path, batches: int, max_seconds: float
) -> float:
    """Run up to `batches` batches within the time. The first is not counted."""
    with _steps(what, name, path) as step:
        step(0)
        began = at = perf_counter()
        count = 0
        while count < batches and at - began < max_seconds:
            count += 1
            step(count * BATCH)
            at = perf_counter()
    return count * BATCH / (at - began)


def _steps(what: str, name: str, path: Path) -> AbstractContextManager[Step]:
    if name == HOLDFAST.name:
        return _holdfast(what, path)
    if name in (RAW, RAW_ROLLBACK):
        return _raw_sqlite(what, path, "WAL" if name == RAW else "DELETE")
    return _peer(name, path)


@contextmanager
def _holdfast(what: str, path: Path) -> Iterator[Step]:
    queue = open_queue_at(path, durability="power")

    def push(first: int) -> None:
        queue.push_many([task(number) for number in range(first, first + BATCH)])

    def cycle(first: int) -> None:
        push(first)
        claimed = queue.poll(BATCH)
        assert len(claimed) == BATCH
        queue.ack_many(claimed)

    yield push if what == "push" else cycle
    queue.close()


@contextmanager
def _raw_sqlite(what: str, path: Path, journal: str) -> Iterator[Step]:
    """SQLite without a queue: one table, and one transaction per step of the cycle."""
    database = sqlite3.connect(path / "raw.db", isolation_level=None)
    database.execute(f"PRAGMA journal_mode={journal}")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE task (id INTEGER PRIMARY KEY, state INTEGER, body BLOB)")
    database.execute("CREATE INDEX waiting ON task (id) WHERE state = 0")

    def push(first: int) -> None:
        rows = [(body(number),) for number in range(first, first + BATCH)]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO task (state, body) VALUES (0, ?)", rows)
        database.execute("COMMIT")

    def cycle(first: int) -> None:
        push(first)
        claimed = database.execute(
            "UPDATE task SET state = 1 WHERE id IN "
            "(SELECT id FROM task WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, body",
            (BATCH,),
        ).fetchall()
        assert len(claimed) == BATCH
        database.execute("BEGIN IMMEDIATE")
        done = [(number,) for number, _ in claimed]
        database.executemany("UPDATE task SET state = 2 WHERE id = ?", done)
        database.execute("COMMIT")

    yield push if what == "push" else cycle
    database.close()


@contextmanager
def _peer(name: str, path: Path) -> Iterator[Step]:
    """Push a hundred single messages, each synced, because these peers have no batches."""
    queue = card_named(name).open(path)

    def push(first: int) -> None:
        for number in range(first, first + BATCH):
            queue.push(queue.payload(number))

    yield push
    queue.close()


def _result(measured: Measured, syncing: list[str]) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "messages/s", "lowest to highest"),
        rows=[
            [f"{what}: {name}", f"{median(rates):,.0f}", spread(rates)]
            for (what, name), rates in measured.items()
        ],
        bars=_bars(measured, syncing),
        notes=(
            'Holdfast with durability="power": push_many, poll and ack_many of 100. The peers '
            "have no push of many. Raw SQLite is a table and three transactions per 100.",
        ),
    )


def _bars(measured: Measured, syncing: list[str]) -> list[Bar]:
    best = max(syncing, key=lambda name: median(measured["push", name]))
    push = ratio(measured["push", HOLDFAST.name], measured["push", best])
    cycle = ratio(measured["cycle", RAW], measured["cycle", HOLDFAST.name])
    return [
        Bar(f"push_many at least 2 × the best peer that syncs ({best})", push, 2.0, "×"),
        Bar(
            "full cycle at most 1.5 × the time of raw SQLite",
            cycle,
            1.5,
            "×",
            at_least=False,
        ),
    ]
