"""sqlite_renew: measure the CPU and the transactions of 10,000 renewed leases."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from bench.figures import cpu_seconds
from bench.holdfast import BATCH, SQLITE_FILE, SQLITE_ONE
from bench.measure import filled
from bench.payload import BenchTask
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import Lease, Renewal
from holdfast.queue.message import get_lease
from holdfast.queues.sqlite.queue import SQLiteQueue

NAME = "sqlite_renew"
TITLE = "SQLite queue: 10,000 leases kept alive"
LEASES = 10_000
RENEW_AFTER = 1 / 3


class CountingQueue(SQLiteQueue[BenchTask]):
    """A SQLite queue that counts its renewals."""

    calls = 0
    renewals = 0

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Renew, and count."""
        self.calls += 1
        self.renewals += len(leases)
        return super().renew(leases, seconds)


@dataclass(frozen=True, slots=True)
class Kept:
    """The figures of one measurement."""

    lease_seconds: float
    seconds: float
    renewals: int
    calls: int
    transactions: int
    cpu: float  # cores in use
    lost: int


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    lease_seconds = session.size(60, 9)
    with session.arena.room(NAME) as path, session.console.status(TITLE):
        queue = filled(session, SQLITE_ONE, path, LEASES)
        return _result(in_fresh_process(keep, queue, lease_seconds))


def keep(path: Path, lease_seconds: float) -> Kept:
    """Claim all over one interval, as busy workers do, and renew them over the next."""
    interval = lease_seconds * RENEW_AFTER
    file = path / SQLITE_FILE
    queue = CountingQueue(file, BenchTask, lease_seconds=lease_seconds)
    keeper = LeaseKeeper(renew_after=RENEW_AFTER)
    keeper.start()
    leases = _claim_all(queue, keeper, interval)
    calls, renewals, transactions = queue.calls, queue.renewals, _count_transactions(file)
    began, used = monotonic(), cpu_seconds()
    sleep(interval)
    seconds, used = monotonic() - began, cpu_seconds() - used
    kept = Kept(
        lease_seconds=lease_seconds,
        seconds=seconds,
        renewals=queue.renewals - renewals,
        calls=queue.calls - calls,
        transactions=_count_transactions(file) - transactions,
        cpu=used / seconds,
        lost=sum(not lease.live for lease in leases) + LEASES - queue.stats().leased,
    )
    keeper.stop()
    queue.close()
    return kept


def _claim_all(queue: CountingQueue, keeper: LeaseKeeper, interval: float) -> list[Lease]:
    leases: list[Lease] = []
    began = monotonic()
    while len(leases) < LEASES:
        claimed = [get_lease(message) for message in queue.poll(BATCH)]
        for lease in claimed:
            keeper.hold(lease)
        leases += claimed
        sleep(max(0.0, began + len(leases) / LEASES * interval - monotonic()))
    return leases


def _count_transactions(file: Path) -> int:
    """Return SQLite's counter of write transactions, which is in the index of its log."""
    with Path(f"{file}-shm").open("rb") as index:
        return int(struct.unpack("=8xI", index.read(12))[0])


def _result(kept: Kept) -> Result:
    allowed = 2 * 60 / kept.lease_seconds  # a shorter lease is renewed more often
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "leases", "renewals", "calls", "transactions", "lost", "CPU"),
        rows=[
            [
                "Holdfast SQLite: one keeper thread",
                f"{LEASES:,}",
                f"{kept.renewals:,}",
                f"{kept.calls:,}",
                f"{kept.transactions:,}",
                f"{kept.lost:,}",
                f"{kept.cpu * 100:.1f} % of a core",
            ]
        ],
        bars=[
            Bar(
                f"under {allowed:g} % of a core with a {kept.lease_seconds:g} s lease",
                kept.cpu * 100,
                allowed,
                "%",
                at_least=False,
            ),
            Bar(
                "one transaction per batch",
                kept.transactions / kept.calls,
                1,
                "",
                at_least=False,
            ),
            Bar("no lease lost", kept.lost, 0, "", at_least=False),
        ],
        notes=(
            f"Claimed by the hundred over {kept.lease_seconds * RENEW_AFTER:.0f} s, then "
            f"renewed for {kept.seconds:.0f} s. The transactions are counted by SQLite.",
        ),
    )
