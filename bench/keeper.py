"""keeper: renew 10,000 leases with one thread, and with a thread for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from threading import Event, Thread, stack_size
from time import sleep

from bench.figures import MIB, cpu_seconds, memory_bytes
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, Renewal

NAME = "keeper"
TITLE = "10,000 leases kept alive"
LEASES = 10_000
RENEW_AFTER = 1 / 3
ROUND_TRIP_SECONDS = 0.001
# Ten thousand threads would block a small machine for minutes; this many are enough.
THREADS = 2_000


class Backend:
    """A backend that grants every renewal after a short delay and records how late it was."""

    name = "bench"
    renew_batch = 10

    def __init__(self) -> None:
        self.calls = 0
        self.late: list[float] = []

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Grant renewals after a short delay."""
        now = SYSTEM_CLOCK.monotonic()
        self.calls += 1
        self.late.extend(max(0.0, now - _due_at(lease)) for lease in leases)
        sleep(ROUND_TRIP_SECONDS)
        return [RENEWED] * len(leases)


def _due_at(lease: Lease) -> float:
    return lease.deadline - (1 - RENEW_AFTER) * lease.seconds


@dataclass(frozen=True, slots=True)
class Kept:
    """The figures of one measurement."""

    renewals: int
    calls: int
    leases: int
    late_p99: float  # seconds
    lost: int
    memory: int  # bytes above idle
    cpu: float  # cores in use
    interval: float


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    interval, intervals = session.size(10, 3), session.size(3, 2)
    with session.console.status("keeper: one thread"):
        kept = in_fresh_process(keep_with_keeper, LEASES, interval, intervals)
        few = in_fresh_process(keep_with_keeper, THREADS, interval, intervals)
    with session.console.status("keeper: a thread for each lease"):
        threads = in_fresh_process(keep_with_threads, THREADS, interval, intervals)
    return _result(kept, few, threads)


def keep_with_keeper(count: int, interval: float, intervals: int) -> Kept:
    """Renew with one keeper thread."""
    backend = Backend()
    keeper = LeaseKeeper(renew_after=RENEW_AFTER)
    keeper.start()
    idle = memory_bytes()
    leases = _leases(backend, count, interval)
    for lease in leases:
        keeper.hold(lease)
    cpu = _cpu_while(lambda: sleep(interval * intervals))
    memory = memory_bytes() - idle
    keeper.stop()
    return _kept(backend, leases, memory, cpu, interval)


def keep_with_threads(count: int, interval: float, intervals: int) -> Kept:
    """Renew with a thread for each message, with small stacks to be fair."""
    backend, stop = Backend(), Event()
    idle = memory_bytes()
    leases = _leases(backend, count, interval)
    stack_size(256 * 1024)
    threads = [Thread(target=_beat, args=(lease, stop), daemon=True) for lease in leases]
    for thread in threads:
        thread.start()
    cpu = _cpu_while(lambda: sleep(interval * intervals))
    memory = memory_bytes() - idle
    stop.set()
    for thread in threads:
        thread.join()
    return _kept(backend, leases, memory, cpu, interval)


def _cpu_while(wait: Callable[[], None]) -> float:
    """Return how many cores this process used meanwhile."""
    began, used = SYSTEM_CLOCK.monotonic(), cpu_seconds()
    wait()
    return (cpu_seconds() - used) / (SYSTEM_CLOCK.monotonic() - began)


def _beat(lease: Lease, stop: Event) -> None:
    while not stop.wait(max(0.0, _due_at(lease) - SYSTEM_CLOCK.monotonic())):
        asked_at = SYSTEM_CLOCK.monotonic()
        [answer] = lease.source.renew([lease], lease.seconds)
        now = SYSTEM_CLOCK.monotonic()
        lease.apply_renewal(answer, asked_at=asked_at, now=now, seconds=lease.seconds)
        if not lease.live:
            return


def _leases(backend: Backend, count: int, interval: float) -> list[Lease]:
    """Make leases claimed one after another over the last interval, as by busy workers."""
    random, now = Random(1), SYSTEM_CLOCK.monotonic()
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


def _kept(
    backend: Backend, leases: Sequence[Lease], memory: int, cpu: float, interval: float
) -> Kept:
    late = sorted(backend.late)
    return Kept(
        renewals=len(late),
        calls=backend.calls,
        leases=len(leases),
        late_p99=late[int(len(late) * 0.99)],
        lost=sum(not lease.live for lease in leases),
        memory=memory,
        cpu=cpu,
        interval=interval,
    )


def _result(kept: Kept, few: Kept, threads: Kept) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            "leases",
            "renewals",
            "calls",
            "late, p99",
            "lost",
            "memory above idle",
            "CPU",
        ),
        rows=[
            _row("Holdfast: one keeper thread", kept),
            _row("Holdfast: one keeper thread", few),
            _row("a thread for each lease", threads),
        ],
        bars=_bars(kept),
        notes=(
            f"Each lease is due every {kept.interval:.0f} s, spread at random; a call takes "
            f"{ROUND_TRIP_SECONDS * 1000:.0f} ms and carries up to {Backend.renew_batch}.",
        ),
    )


def _row(name: str, kept: Kept) -> list[str]:
    return [
        name,
        f"{kept.leases:,}",
        f"{kept.renewals:,}",
        f"{kept.calls:,}",
        f"{kept.late_p99 * 1000:,.1f} ms",
        f"{kept.lost:,}",
        f"{kept.memory / MIB:,.0f} MiB",
        f"{kept.cpu * 100:,.0f} % of a core",
    ]


def _bars(kept: Kept) -> list[Bar]:
    late = kept.late_p99 / kept.interval * 100
    return [
        Bar("leases per renewal call, of 10", kept.renewals / kept.calls, 9.5, ""),
        Bar("p99 lateness under 5 % of the interval", late, 5, "%", at_least=False),
        Bar("at most 64 MiB above idle", kept.memory / MIB, 64, "MiB", at_least=False),
        Bar("no lease lost", kept.lost, 0, "", at_least=False),
    ]
