"""Helpers to run workers under test and to wait for conditions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from holdfast.errors import LeaseLost
from holdfast.events import Events
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.lease import Lease, Refused, Renewal
from holdfast.queue.admission import Delivery
from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.worker import Worker, WorkerReport
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

T = TypeVar("T")


class SlowMotionClock:
    """The system's clock at a tenth of its speed, from the same time on.

    It leaves a busy machine ten times as long until something happens.
    """

    speed = 0.1

    def __init__(self) -> None:
        self._began_at = SYSTEM_CLOCK.monotonic()
        self._began_time = SYSTEM_CLOCK.time()

    def monotonic(self) -> float:
        return self._began_at + self._count_seconds()

    def time(self) -> float:
        return self._began_time + self._count_seconds()

    def _count_seconds(self) -> float:
        return self.speed * (SYSTEM_CLOCK.monotonic() - self._began_at)

    def wait(self, event: Event, seconds: float | None) -> bool:
        return event.wait(None if seconds is None else seconds / self.speed)

    def sleep(self, seconds: float) -> None:
        SYSTEM_CLOCK.sleep(seconds / self.speed)


class Running:
    """A worker that runs in its own thread."""

    def __init__(self, worker: Worker[Any], until_empty: bool) -> None:
        self.worker = worker
        self.report: WorkerReport | None = None
        self.error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(until_empty,), daemon=True)
        self._thread.start()

    def _run(self, until_empty: bool) -> None:
        try:
            self.report = self.worker.run(until_empty=until_empty)
        except BaseException as error:
            self.error = error

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self, clock: ManualClock | None = None) -> WorkerReport:
        """Wait until the run ends. A manual clock is advanced as fast as real time."""
        wait_until(lambda: self.ended() or (clock and clock.advance(0.01)))
        if self.error is not None:
            raise self.error
        assert self.report is not None
        return self.report

    def stop(self) -> WorkerReport:
        self.worker.stop()
        return self.join()

    def stop_now(self) -> WorkerReport:
        self.worker.stop_now()
        return self.join()


@contextmanager
def running(worker: Worker[Any], *, until_empty: bool = False) -> Iterator[Running]:
    """Run the worker beside the test, and stop it afterwards."""
    run = Running(worker, until_empty)
    try:
        yield run
    finally:
        worker.stop_now()
        run._thread.join(WAIT_TIMEOUT_SECONDS)


def run_until_empty(worker: Worker[Any], clock: ManualClock | None = None) -> WorkerReport:
    with running(worker, until_empty=True) as run:
        return run.join(clock)


class Seen:
    """A subscriber that records events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


class TestQueue(MemoryQueue[AnyMessage]):
    """A queue that records its calls and can refuse to renew."""

    __test__ = False

    def __init__(
        self,
        *,
        lease_seconds: float = 30.0,
        max_attempts: int = 3,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.seen = Seen()
        super().__init__(
            AnyMessage,
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
            backoff=Backoff(first_seconds=0.02, max_seconds=0.1),
            events=Events(self.seen),
            clock=clock,
        )
        self.log: list[str] = []
        self.most_out = 0
        self.most_asked = 0
        self.refusing = Event()
        self.renewals = 0
        self.poll_errors: list[Exception] = []
        self.before_settling: Callable[[str], None] = lambda verb: None
        self._out = 0
        self._counting = Lock()

    def push_ids(self, *ids: str, **fields: Any) -> None:
        self.push_many([AnyMessage(id=message_id, **fields) for message_id in ids])

    def _claim(self, limit: int) -> Sequence[Delivery]:
        if self.poll_errors:
            raise self.poll_errors.pop(0)
        with self._counting:
            self.most_asked = max(self.most_asked, self._out + limit)
        claimed = super()._claim(limit)
        with self._counting:
            self._out += len(claimed)
            self.most_out = max(self.most_out, self._out)
        self.log += [f"claim {delivery.message_id}" for delivery in claimed]
        return claimed

    def _settled(self, verb: str, lease: Lease) -> None:
        self.log.append(f"{verb} {lease.message_id}")
        self.before_settling(verb)
        with self._counting:
            self._out -= 1

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        for lease in leases:
            self._settled("ack", lease)
        return super()._ack(leases)

    def _nack(self, lease: Lease, *args: Any) -> LeaseLost | None:
        self._settled("nack", lease)
        return super()._nack(lease, *args)

    def _release(self, lease: Lease, delay_seconds: float = 0.0) -> LeaseLost | None:
        self._settled("release", lease)
        return super()._release(lease, delay_seconds)

    def _dead_letter(self, lease: Lease, *args: Any) -> LeaseLost | None:
        self._settled("dead_letter", lease)
        return super()._dead_letter(lease, *args)

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        self.renewals += 1
        self.log += [f"renew {lease.message_id}" for lease in leases]
        if self.refusing.is_set():
            return [Refused("another worker has it") for _ in leases]
        return super().renew(leases, seconds)


def pass_a_renewal(queue: TestQueue, clock: ManualClock) -> None:
    """Let more than a third of the lease pass, and wait for the renewal that is due then."""
    before = queue.renewals
    clock.advance(0.4 * queue.lease_seconds)
    wait_until(lambda: queue.renewals > before)


# -- processes


def members(group: int) -> list[int]:
    """Return the live members of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found
