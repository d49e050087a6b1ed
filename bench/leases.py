"""keeper, sqlite_renew and sqs_renew: leases kept alive by one thread."""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread, stack_size
from time import monotonic, sleep
from typing import Any

from bench.cycles import fill_queue
from bench.own_queues import BATCH, SQLITE, SQLITE_FILE
from bench.payload import BenchTask
from bench.report import Bar, Result, at_most
from bench.session import (
    MIB,
    Figures,
    Session,
    cpu_seconds,
    in_fresh_process,
    read_memory_bytes,
)
from bench.sqs_server import Place, serving_sqs
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, Renewal
from holdfast.queue.message import get_lease
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.queues.sqs import SQSQueue

LEASES = 10_000
RENEW_AFTER = 1 / 3
ROUND_TRIP_SECONDS = 0.001
# Ten thousand threads would block a small machine for minutes; this many are enough.
THREADS = 2_000


def _watch(seconds: float) -> tuple[float, float]:
    """Wait, and return the seconds and the cores that this process used meanwhile."""
    began, used = monotonic(), cpu_seconds()
    sleep(seconds)
    waited = monotonic() - began
    return waited, (cpu_seconds() - used) / waited


# -- the keeper alone


class Backend:
    """A backend that grants every renewal after a short delay and records how late it was."""

    name = "bench"
    renew_batch = 10

    def __init__(self) -> None:
        self.calls = 0
        self.late: list[float] = []

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Grant renewals after a short delay."""
        now = monotonic()
        self.calls += 1
        self.late.extend(max(0.0, now - _due_at(lease)) for lease in leases)
        sleep(ROUND_TRIP_SECONDS)
        return [RENEWED] * len(leases)


def _due_at(lease: Lease) -> float:
    return lease.deadline - (1 - RENEW_AFTER) * lease.seconds


def run_keeper(session: Session) -> Result:
    """Compare one keeper thread with a thread for each lease."""
    title = "10,000 leases kept alive"
    interval, intervals = session.size(10, 3), session.size(3, 2)
    own = f"Holdfast: one keeper thread, {LEASES:,} leases"
    ways = {
        own: (LEASES, True),
        f"Holdfast: one keeper thread, {THREADS:,} leases": (THREADS, True),
        f"a thread for each of {THREADS:,} leases": (THREADS, False),
    }
    contenders = {
        name: partial(in_fresh_process, keep_in_memory, count, kept, interval, intervals)
        for name, (count, kept) in ways.items()
    }
    measured = session.measure(title, contenders, rounds=1)
    per_call = measured.median(own, "renewals") / measured.median(own, "calls")
    late = measured.median(own, "late_ms") / 10 / interval
    return Result(
        title,
        ("", "renewals", "calls", "late, p99", "memory", "CPU"),
        measured.make_rows(
            ("renewals", "{:,.0f}"),
            ("calls", "{:,.0f}"),
            ("late_ms", "{:,.1f} ms"),
            ("mib", "{:,.0f} MiB"),
            ("cpu", "{:,.0f} % of a core"),
        ),
        [
            Bar("leases per renewal call, of 10", per_call, 9.5, ""),
            at_most("p99 lateness under 5 % of the interval", late, 5, "%"),
            at_most("at most 64 MiB above idle", measured.median(own, "mib"), 64, "MiB"),
            at_most("no lease lost", measured.sum(own, "lost"), 0),
        ],
        measured,
        f"Each lease is due every {interval} s; a call takes "
        f"{ROUND_TRIP_SECONDS * 1000:.0f} ms.",
    )


def keep_in_memory(count: int, by_keeper: bool, interval: float, intervals: int) -> Figures:
    """Renew with one keeper, or with a thread for each lease, with small stacks to be fair."""
    backend, stop, keeper = Backend(), Event(), LeaseKeeper(renew_after=RENEW_AFTER)
    idle = read_memory_bytes()
    leases = _make_leases(backend, count, interval)
    if by_keeper:
        keeper.start()
        for lease in leases:
            keeper.hold(lease)
    else:
        stack_size(256 * 1024)
        for lease in leases:
            Thread(target=_renew_alone, args=(lease, stop), daemon=True).start()
    _, cpu = _watch(interval * intervals)
    memory = read_memory_bytes() - idle
    stop.set()
    keeper.stop()
    late = sorted(backend.late)
    return {
        "renewals": len(late),
        "calls": backend.calls,
        "late_ms": late[int(len(late) * 0.99)] * 1000,
        "lost": sum(not lease.live for lease in leases),
        "mib": memory / MIB,
        "cpu": cpu * 100,
    }


def _renew_alone(lease: Lease, stop: Event) -> None:
    while not stop.wait(max(0.0, _due_at(lease) - monotonic())):
        asked_at = monotonic()
        [answer] = lease.source.renew([lease], lease.seconds)
        now = monotonic()
        lease.apply_renewal(answer, asked_at=asked_at, now=now, seconds=lease.seconds)
        if not lease.live:
            return


def _make_leases(backend: Backend, count: int, interval: float) -> list[Lease]:
    """Make leases claimed one after another over the last interval, as by busy workers."""
    random, now = Random(1), monotonic()
    return [
        Lease(
            backend,
            None,
            message_id=f"{number:032x}",
            attempt=1,
            fence=1,
            claimed_at=now - random.uniform(0, interval * 0.9),
            seconds=interval / RENEW_AFTER,
        )
        for number in range(count)
    ]


# -- on SQLite


class CountingQueue(SQLiteQueue[BenchTask]):
    """A SQLite queue that counts its renewals."""

    calls = renewals = 0

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Renew, and count."""
        self.calls += 1
        self.renewals += len(leases)
        return super().renew(leases, seconds)


def run_sqlite_renew(session: Session) -> Result:
    """Count the CPU and the transactions of renewed leases."""
    title, name = "SQLite queue: 10,000 leases kept alive", "Holdfast SQLite: one keeper thread"
    lease_seconds = session.size(60, 9)

    def measure() -> Figures:
        with session.arena.room("renew") as path:
            queue = fill_queue(session, SQLITE, path, LEASES)
            return in_fresh_process(keep_on_sqlite, queue, lease_seconds)

    measured = session.measure(title, {name: measure}, rounds=1)
    allowed = 2 * 60 / lease_seconds  # a shorter lease is renewed more often
    per_call = measured.median(name, "transactions") / measured.median(name, "calls")
    return Result(
        title,
        ("", "renewals", "calls", "transactions", "CPU"),
        measured.make_rows(
            *((figure, "{:,.0f}") for figure in ("renewals", "calls", "transactions")),
            ("cpu", "{:.1f} % of a core"),
        ),
        [
            at_most(
                f"under {allowed:g} % of a core with a {lease_seconds} s lease",
                measured.median(name, "cpu"),
                allowed,
                "%",
            ),
            at_most("one transaction per batch", per_call, 1),
            at_most("no lease lost", measured.sum(name, "lost"), 0),
        ],
        measured,
    )


def keep_on_sqlite(path: Path, lease_seconds: float) -> Figures:
    """Claim all over one interval, as busy workers do, and renew them over the next."""
    interval, file = lease_seconds * RENEW_AFTER, path / SQLITE_FILE
    queue = CountingQueue(file, BenchTask, lease_seconds=lease_seconds)
    keeper = LeaseKeeper(renew_after=RENEW_AFTER)
    keeper.start()
    leases: list[Lease] = []
    began = monotonic()
    while len(leases) < LEASES:
        claimed = [get_lease(message) for message in queue.poll(BATCH)]
        for lease in claimed:
            keeper.hold(lease)
        leases += claimed
        sleep(max(0.0, began + len(leases) / LEASES * interval - monotonic()))
    calls, renewals, transactions = queue.calls, queue.renewals, _count_transactions(file)
    _, cpu = _watch(interval)
    figures = {
        "renewals": queue.renewals - renewals,
        "calls": queue.calls - calls,
        "transactions": _count_transactions(file) - transactions,
        "cpu": cpu * 100,
        "lost": sum(not lease.live for lease in leases) + LEASES - queue.stats().leased,
    }
    keeper.stop()
    queue.close()
    return figures


def _count_transactions(file: Path) -> int:
    """Return SQLite's counter of write transactions, which is in the index of its log."""
    with Path(f"{file}-shm").open("rb") as index:
        return int(struct.unpack("=8xI", index.read(12))[0])


# -- on SQS

KEEPER = "Holdfast: one keeper thread"
BOTO3_THREADS = "boto3: a thread and a call for each message"
MESSAGES = 500  # also with --quick: with fewer, a call is made less often and costs more
VISIBILITY_SECONDS = 9
INTERVAL_SECONDS = VISIBILITY_SECONDS / 3


def run_sqs_renew(session: Session) -> Result:
    """Compare a keeper with a boto3 call for each message."""
    title = "SQS: CPU per renewed lease"
    seconds = session.size(4, 2) * INTERVAL_SECONDS
    with serving_sqs() as make_place:

        def measure(keep: Callable[[Place, float], Figures]) -> Figures:
            with make_place(VISIBILITY_SECONDS) as place:
                in_fresh_process(_send_messages, place)
                return in_fresh_process(keep, place, seconds)

        contenders = {
            KEEPER: partial(measure, keep_with_keeper),
            BOTO3_THREADS: partial(measure, keep_with_threads),
        }
        measured = session.measure(title, contenders, rounds=min(session.rounds, 3))
    return Result(
        title,
        ("", "renewals", "CPU per renewal"),
        measured.make_rows(("renewals", "{:,.0f}"), ("ms", "{:.3f} ms")),
        [
            Bar(
                "at least 15 × less CPU than a boto3 call for each message in threads",
                measured.ratio(BOTO3_THREADS, KEEPER, "ms"),
                15.0,
                "×",
            ),
            at_most("no lease lost", measured.sum(KEEPER, "lost"), 0),
        ],
        measured,
        f"{MESSAGES} messages, each renewed every {INTERVAL_SECONDS:g} s.",
    )


def _open_sqs(place: Place) -> SQSQueue[BenchTask]:
    return SQSQueue(place.url, BenchTask, lease_seconds=VISIBILITY_SECONDS)


def _send_messages(place: Place) -> None:
    from bench.payload import task

    _open_sqs(place).push_many([task(number) for number in range(MESSAGES)])


def keep_with_keeper(place: Place, seconds: float) -> Figures:
    """Renew with one keeper thread."""
    queue = _open_sqs(place)
    with LeaseKeeper() as keeper:
        held: list[BenchTask] = []
        while len(held) < MESSAGES:
            for message in queue.poll():
                keeper.hold(get_lease(message))
                held.append(message)
            _wait_for_the_next()
        return _watch_renewals(
            place, seconds, lambda: sum(not get_lease(message).live for message in held)
        )


def keep_with_threads(place: Place, seconds: float) -> Figures:
    """Renew with a thread for each message, as handwritten code does, with small stacks."""
    client = place.client(max_pool_connections=50)
    lost: list[str] = []
    stack_size(256 * 1024)
    begun = 0
    while begun < MESSAGES:
        answer = client.receive_message(
            QueueUrl=place.url, VisibilityTimeout=VISIBILITY_SECONDS
        )
        for raw in answer.get("Messages", []):
            args = (client, place.url, raw["ReceiptHandle"], lost)
            Thread(target=_change_visibility, args=args, daemon=True).start()
            begun += 1
        _wait_for_the_next()
    return _watch_renewals(place, seconds, lambda: len(lost))


def _wait_for_the_next() -> None:
    """Receive messages one after another over an interval, so that they are due in order."""
    sleep(INTERVAL_SECONDS * 0.9 / MESSAGES)


def _watch_renewals(place: Place, seconds: float, count_lost: Callable[[], int]) -> Figures:
    """Skip the first renewals, because they create the connections."""
    sleep(INTERVAL_SECONDS)
    renewed = place.read_figures().renewed
    waited, cpu = _watch(seconds)
    renewals = place.read_figures().renewed - renewed
    return {"renewals": renewals, "ms": cpu * waited / renewals * 1000, "lost": count_lost()}


def _change_visibility(client: Any, url: str, handle: str, lost: list[str]) -> None:
    while True:
        sleep(INTERVAL_SECONDS)
        try:
            client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=VISIBILITY_SECONDS
            )
        except client.exceptions.ClientError:
            lost.append(handle)
            return
