"""cycle, backlog, power and their twins on SQLite: push, claim and complete in one process."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

from bench.contender import Card, get_cards
from bench.own_queues import (
    BARE,
    FILES,
    FILES_BATCHED,
    FILES_POWER,
    RAW,
    RAW_BATCHED,
    RAW_FULL,
    RAW_FULL_BATCHED,
    RAW_FULL_FOUR,
    SQLITE,
    SQLITE_BATCHED,
    SQLITE_POWER,
    SQLITE_POWER_BATCHED,
    TYPED,
    TYPED_BATCHED,
    open_sqlite_at,
)
from bench.peers import DIRQ, PEERS, SQLITE_PEERS
from bench.report import Bar, Chart, Result, at_most
from bench.session import (
    MIB,
    Figures,
    Measured,
    Session,
    cpu_seconds,
    in_fresh_process,
    read_memory_bytes,
    repeat,
)

WARM_UP = 100
WAITING = 10_000
IMAGE_GIB = 12
MEMORY_SLACK_MIB = 8
TYPES = (
    "Holdfast and the typed lines build, serialise, parse and validate a typed message in the "
    "measured time; the others move finished JSON of the same 300 bytes."
)


def fill_queue(session: Session, card: Card, path: Path, count: int) -> Path:
    """Return the folder of a queue with `count` waiting messages, all written out."""
    target = path / "queue"
    if card.one_file:
        shutil.copytree(_make_template(session, card, count), target)
    else:
        target.mkdir()
        in_fresh_process(fill, card.name, target, count)
    session.arena.settle(path)
    return target


def _make_template(session: Session, card: Card, count: int) -> Path:
    """Fill a database once and copy it, because those that sync every commit fill slowly."""
    template = session.scratch / f"{card.name}-{count}"
    if not template.exists():
        template.mkdir()
        in_fresh_process(fill, card.name, template, count)
    return template


def fill(name: str, path: Path, count: int) -> None:
    """Fill a queue in a new process."""
    queue = get_cards()[name].open(path)
    queue.fill(count)
    queue.close()


def run_cycles(name: str, path: Path, count: int, max_seconds: float) -> Figures:
    """Move up to `count` messages through a cycle, but no longer than `max_seconds`."""
    card = get_cards()[name]
    queue = card.open(path)
    for number in range(max(1, WARM_UP // card.batch)):
        queue.push(queue.payload(10_000_000 + number))
        queue.done(queue.claim())
    payloads = [queue.payload(20_000_000 + number) for number in range(count // card.batch)]
    spent = [0.0, 0.0, 0.0]

    def cycle(number: int) -> None:
        t0 = perf_counter()
        queue.push(payloads[number])
        t1 = perf_counter()
        claimed = queue.claim()
        t2 = perf_counter()
        queue.done(claimed)
        spent[0] += t1 - t0
        spent[1] += t2 - t1
        spent[2] += perf_counter() - t2

    used = cpu_seconds()
    cycles, seconds = repeat(cycle, len(payloads), max_seconds)
    messages = cycles * card.batch
    push, claim, complete = (part / messages * 1e6 for part in spent)
    figures = {
        "rate": messages / seconds,
        "cpu": (cpu_seconds() - used) / messages * 1e6,
        "push": push,
        "claim": claim,
        "complete": complete,
        "peak": read_memory_bytes("VmHWM") / MIB,
    }
    queue.close()
    return figures


def _measure(session: Session, card: Card, count: int, waiting: int = WAITING) -> Figures:
    with session.arena.room(card.name) as path:
        queue = fill_queue(session, card, path, waiting)
        return in_fresh_process(run_cycles, card.name, queue, count, session.max_seconds)


def _measure_cards(
    session: Session, title: str, cards: Sequence[Card], count: int, waiting: int = WAITING
) -> Measured:
    """Measure each card. Batches are fast, so that the same time takes more messages."""
    return session.measure(
        title,
        {
            card.name: partial(
                _measure, session, card, count * (1 if card.batch == 1 else 4), waiting
            )
            for card in cards
        },
    )


# -- with few waiting


def run_cycle(session: Session) -> Result:
    """Compare the file queue with the peers."""
    title = "Full cycle with 10,000 waiting"
    cards = (BARE, FILES, FILES_BATCHED, *PEERS)
    measured = _measure_cards(session, title, cards, session.size(10_000, 2_000))
    best = measured.find_best([card.name for card in PEERS if card.survives])
    dirq = measured.ratio(FILES.name, DIRQ.name)
    return Result(
        title,
        ("", "messages/s", "µs of CPU", "µs: push", "claim", "complete", "redelivered?"),
        [[*row, get_cards()[row[0]].redelivers] for row in _make_cycle_rows(measured)],
        [
            Bar("at least 1.5 × dirq QueueSimple", dirq, 1.5, "×"),
            Bar("2 × dirq QueueSimple", dirq, 2.0, "×", aim=True),
            Bar(
                f"ahead of every peer that keeps a killed worker's message (best: {best})",
                measured.ratio(FILES.name, best),
                1.0,
                "×",
            ),
            at_most(
                "at most 2 × the time of the bare system calls",
                measured.ratio(BARE.name, FILES.name),
                2.0,
                "×",
            ),
        ],
        measured,
        TYPES,
        [_draw_rates(measured, title)],
    )


def run_sqlite(session: Session) -> Result:
    """Compare the SQLite queue with its peers and with raw SQLite."""
    title = "SQLite queue: full cycle with 10,000 waiting"
    one_by_one = (SQLITE, FILES, RAW, TYPED, *SQLITE_PEERS)
    cards = (*one_by_one, SQLITE_BATCHED, FILES_BATCHED, RAW_BATCHED, TYPED_BATCHED)
    measured = _measure_cards(session, title, cards, session.size(5_000, 1_000))
    best = measured.find_best([card.name for card in SQLITE_PEERS if card.survives])

    def lead(card: Card, rival: Card) -> float:
        return measured.ratio(card.name, rival.name)

    def bound(raw: Card, typed: Card) -> str:
        rates = lead(raw, DIRQ), lead(typed, DIRQ)
        return "raw SQLite reaches {:.2f} ×, and with typed messages {:.2f} ×".format(*rates)

    return Result(
        title,
        ("", "messages/s", "µs of CPU", "µs: push", "claim", "complete"),
        _make_cycle_rows(measured),
        [
            Bar(
                "one by one at least 1.3 × dirq",
                lead(SQLITE, DIRQ),
                1.3,
                "×",
                bound=bound(RAW, TYPED),
            ),
            Bar(
                "one by one ahead of every peer that keeps a killed worker's message "
                f"(best: {best})",
                measured.ratio(SQLITE.name, best),
                1.0,
                "×",
            ),
            Bar(
                "batches of 100 at least 6 × dirq",
                lead(SQLITE_BATCHED, DIRQ),
                6.0,
                "×",
                bound=bound(RAW_BATCHED, TYPED_BATCHED),
            ),
            at_most(
                "batches of 100 at most 1.6 × the time of raw SQLite",
                lead(RAW_BATCHED, SQLITE_BATCHED),
                1.6,
                "×",
                bound=f"with typed messages {lead(RAW_BATCHED, TYPED_BATCHED):.2f} ×",
            ),
        ],
        measured,
        f"{TYPES} The peers have no batches. persist-queue and huey sync every commit.",
        [_draw_rates(measured, f"{title}, one by one", [card.name for card in one_by_one])],
    )


def _make_cycle_rows(measured: Measured) -> list[Sequence[str]]:
    parts = ("push", "claim", "complete")
    return measured.make_rows(
        ("rate", "{:,.0f}"),
        ("cpu", "{:,.0f}"),
        *((part, "{:,.1f}") for part in parts),
        names=measured.sort(),
    )


def _draw_rates(measured: Measured, title: str, names: Sequence[str] = ()) -> Chart:
    names = names or measured.sort()
    return Chart(
        title, "messages per second", [""], {name: [measured.median(name)] for name in names}
    )


# -- with many waiting


def run_backlog(session: Session) -> Result:
    """Compare few and a million waiting files."""
    many = _count_many(session)
    title = f"Full cycle with {many:,} waiting"
    measured = _measure_backlogs(session, title, (FILES, DIRQ), many)
    few_name, many_name = _label(FILES, WAITING), _label(FILES, many)
    growth = measured.median(many_name, "peak") - measured.median(few_name, "peak")
    dirq = measured.ratio(many_name, _label(DIRQ, many))
    return _make_backlog_result(
        title,
        measured,
        [
            _make_kept_bar(measured, FILES, many),
            Bar("at least 5 × dirq", dirq, 5, "×"),
            at_most(
                f"memory grows by no more than {MEMORY_SLACK_MIB} MiB",
                growth,
                MEMORY_SLACK_MIB,
                "MiB",
            ),
        ],
    )


def run_sqlite_backlog(session: Session) -> Result:
    """Compare few and a million waiting rows."""
    many = _count_many(session)
    title = f"SQLite queue: full cycle with {many:,} waiting"
    measured = _measure_backlogs(session, title, (SQLITE, RAW), many)
    kept = _make_kept_bar(measured, SQLITE, many, RAW)
    return _make_backlog_result(title, measured, [kept])


def _count_many(session: Session) -> int:
    return session.size(1_000_000, 50_000)


def _label(card: Card, waiting: int) -> str:
    return f"{card.name}, {waiting:,} waiting"


def _measure_backlogs(
    session: Session, title: str, cards: Sequence[Card], many: int
) -> Measured:
    """Measure with few, and with many that are pushed once and kept through all rounds."""
    count = session.size(10_000, 2_000)
    contenders = {
        _label(card, WAITING): partial(_measure, session, card, count) for card in cards
    }
    with ExitStack() as rooms:
        for card in cards:
            room = rooms.enter_context(session.arena.room(card.name, gib=IMAGE_GIB))
            queue = fill_queue(session, card, room, many)
            contenders[_label(card, many)] = partial(
                in_fresh_process, run_cycles, card.name, queue, count, session.max_seconds
            )
        return session.measure(title, contenders)


def _make_kept_bar(measured: Measured, card: Card, many: int, bound: Card | None = None) -> Bar:
    def keep(card: Card) -> float:
        return 100 * measured.ratio(_label(card, many), _label(card, WAITING))

    promise = f"at least 90 % of the rate with {WAITING:,}"
    text = f"{bound.name} keeps {keep(bound):.0f} %" if bound else ""
    return Bar(promise, keep(card), 90, "%", bound=text)


def _make_backlog_result(title: str, measured: Measured, bars: Sequence[Bar]) -> Result:
    rows = measured.make_rows(("rate", "{:,.0f}"), ("peak", "{:,.0f} MiB"))
    return Result(title, ("", "messages/s", "peak memory"), rows, bars, measured)


# -- surviving a power cut


def run_power(session: Session) -> Result:
    """Compare durable batches of files with peers that sync, and with raw SQLite."""
    title = "Surviving a power cut: full cycle in batches of 100"
    syncing = [card for card in PEERS if card.syncs]
    cards = (FILES_POWER, RAW_FULL_BATCHED, *syncing)
    measured = _measure_cards(session, title, cards, session.size(2_500, 500))
    best = measured.find_best([card.name for card in syncing])
    return Result(
        title,
        ("", "messages/s"),
        measured.make_rows(("rate", "{:,.0f}")),
        [
            Bar(
                f"at least 2 × the best peer that syncs ({best})",
                measured.ratio(FILES_POWER.name, best),
                2.0,
                "×",
            ),
            at_most(
                "at most 1.5 × the time of raw SQLite",
                measured.ratio(RAW_FULL_BATCHED.name, FILES_POWER.name),
                1.5,
                "×",
            ),
        ],
        measured,
        "The peers have no batches, so they sync each message.",
    )


WORKERS = {"worker, one thread": 1, "worker, four threads": 4}


def run_sqlite_power(session: Session) -> Result:
    """Compare durable cycles with raw SQLite, and what threads share of a sync."""
    title = "SQLite queue: surviving a power cut"
    count = session.size(2_000, 400)
    cards = (SQLITE_POWER, RAW_FULL, SQLITE_POWER_BATCHED, RAW_FULL_BATCHED, RAW_FULL_FOUR)
    contenders = {card.name: partial(_measure, session, card, count) for card in cards}
    for name, threads in WORKERS.items():
        contenders[name] = partial(_measure_worker, session, threads)
    measured = session.measure(title, contenders)
    one, four = WORKERS
    shared = measured.ratio(RAW_FULL_FOUR.name, RAW_FULL.name)
    return Result(
        title,
        ("", "messages/s"),
        measured.make_rows(("rate", "{:,.0f}")),
        [
            at_most(
                "one by one at most 1.3 × the time of raw SQLite",
                measured.ratio(RAW_FULL.name, SQLITE_POWER.name),
                1.3,
                "×",
            ),
            at_most(
                "batches of 100 at most 1.6 × the time of raw SQLite",
                measured.ratio(RAW_FULL_BATCHED.name, SQLITE_POWER_BATCHED.name),
                1.6,
                "×",
            ),
            Bar(
                "four threads at least 2.5 × the rate of one",
                measured.ratio(four, one),
                2.5,
                "×",
                bound=f"raw SQLite with four messages in a commit reaches {shared:.2f} ×",
            ),
        ],
        measured,
        "The workers claim and complete with an empty handler, and share commits among the "
        "messages that they claimed ahead.",
    )


def _measure_worker(session: Session, threads: int) -> Figures:
    count = session.size(5_000, 1_000)
    with session.arena.room("worker") as path:
        queue = fill_queue(session, SQLITE_POWER, path, count)
        return in_fresh_process(_work, queue, threads, count)


def _work(path: Path, threads: int, count: int) -> Figures:
    from bench.workers import time_tasks

    queue = open_sqlite_at(path, durability="power")
    times = time_tasks(queue, threads)
    queue.close()
    assert len(times) == count, f"{len(times):,} of {count:,} were handled"
    return {"rate": (count - 1) / (max(times) - min(times))}
