"""A simulated process: its ports, its keeper, and its consumer of triggers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Event
from typing import Any, Protocol

from holdfast.chat.messages import Trigger
from holdfast.chat.processor import BatchProcessor
from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.lease.lease import Lease
from holdfast.testing import ManualClock
from holdfast.worker.context import Context
from holdfast.worker.outcome import GiveBack, Retry

_STAGING = ("create", "stage", "open_window", "mark_triggered", "window", "close_window")
_BATCH = ("acquire", "release", "staged", "processed", "drop_staged", "note", "finish")
STORE_CALLS = frozenset((*_STAGING, *_BATCH, "park", "get"))


class Connection(Protocol):
    """The connection of a process to the world, where faults happen."""

    def before(self, name: str) -> None:
        """Let other processes run, let time pass, or kill this process."""

    def is_lost(self, name: str, *, after: bool) -> bool:
        """Check whether the request is lost, or with `after` the response."""

    def record(self, name: str, args: tuple[object, ...], answer: object) -> None:
        """Record the result of a call for the report of a failure."""


class Port:
    """A port whose calls are steps of the simulation. A dead process can call nothing."""

    def __init__(self, connection: Connection, unavailable: type[Exception] | None) -> None:
        self._connection, self._unavailable = connection, unavailable

    def reach(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._connection.before(name)
        if self._unavailable and self._connection.is_lost(name, after=False):
            self._connection.record(name, args, "the request was lost")
            raise self._unavailable(f"{name} did not get through")
        try:
            answer = call(*args, **kwargs)
        except Exception as error:
            self._connection.record(name, args, error)
            raise
        self._connection.record(name, args, answer)
        if self._unavailable and self._connection.is_lost(name, after=True):
            self._connection.record(name, args, "the response was lost")
            raise self._unavailable(f"the response to {name} did not get through")
        return answer


class StorePort(Port):
    """The store as a process calls it.

    The keeper's calls are not steps, because they happen while the other actors wait.
    """

    def __init__(
        self, connection: Connection, call: Callable[..., Any], waiting: Callable[[], list[Any]]
    ) -> None:
        super().__init__(connection, StoreUnavailable)
        self._call, self._waiting = call, waiting

    def __getattr__(self, name: str) -> Any:
        if name not in STORE_CALLS:
            raise AttributeError(name)
        return lambda *args, **kwargs: self.reach(name, self._call, name, *args, **kwargs)

    def renew(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._call("renew", *args, **kwargs))

    def waiting(self) -> list[Any]:
        listing: list[Any] = self.reach("waiting", self._waiting)
        return listing


class QueuePort(Port):
    """The queue of triggers as a process calls it."""

    def __init__(self, connection: Connection, box: Any) -> None:
        super().__init__(connection, QueueUnavailable)
        self._box = box

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._box, name)
        return lambda *args, **kwargs: self.reach(name, call, *args, **kwargs)


class ProviderPort(Port):
    """A port to a provider, which fails by itself; see provider.py."""

    def __init__(self, connection: Connection, provider: Any, calls: Sequence[str]) -> None:
        super().__init__(connection, None)
        self._provider, self._calls = provider, calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        if name not in self._calls:
            return value
        return lambda *args, **kwargs: self.reach(name, value, *args, **kwargs)

    @contextmanager
    def connect(self, *args: Any, **kwargs: Any) -> Iterator[Callable[[], Any]]:
        """Make two steps: the connection, and the call that sends over it."""
        with ExitStack() as opened:
            connection = self._provider.connect(*args, **kwargs)
            send = self.reach("connect", opened.enter_context, connection)
            yield lambda: self.reach("send", send)


class ProcessClock:
    """The world's clock, as a process reads it. A wait is a step in which time passes."""

    def __init__(
        self, connection: Connection, clock: ManualClock, pass_time: Callable[[float], None]
    ) -> None:
        self._connection, self._pass_time = connection, pass_time
        self.time, self.monotonic = clock.time, clock.monotonic

    def wait(self, event: Event, seconds: float) -> bool:
        self._connection.before("wait")
        if not event.is_set():
            self._pass_time(seconds)
        return event.is_set()


class KeeperByHand:
    """A keeper without a thread, which renews when the world calls `tick`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._leases: list[Lease] = []

    def start(self) -> None: ...

    def hold(self, lease: Lease) -> None:
        self._leases.append(lease)

    def tick(self) -> None:
        self._leases = [lease for lease in self._leases if lease.live]
        for lease in self._leases:
            now = self._clock.monotonic()
            if now >= lease.deadline:
                lease.lose("its deadline passed")
                continue
            (renewal,) = lease.source.renew([lease], lease.seconds)
            lease.apply_renewal(renewal, asked_at=now, now=now, seconds=lease.seconds)


class Consumer:
    """A consumer that receives, handles and settles triggers, like a worker or a Lambda."""

    def __init__(
        self, processor: BatchProcessor, queue: Any, keeper: KeeperByHand, clock: ManualClock
    ) -> None:
        self._processor, self._queue = processor, queue
        self._keeper, self._clock = keeper, clock
        self.last = ""

    def consume(self, stopping: bool) -> bool:
        """Handle one trigger, or return False if there is none."""
        received = self._queue.receive()
        if received is None:
            return False
        trigger, lease = received
        self._keeper.hold(lease)
        event = Event()
        if stopping:
            event.set()
        context = Context(self._queue, trigger, lease, event, self._clock)
        result = self._handle(trigger, context)
        lease.release()
        with suppress(QueueUnavailable):  # it is delivered again when its lease expires
            self._settle(lease, result)
        return True

    def _handle(self, trigger: Trigger, context: Context) -> Any:
        try:
            return self._processor(trigger, context)
        except Exception as error:
            return Retry(reason=type(error).__name__)

    def _settle(self, lease: Lease, result: Any) -> None:
        self.last = type(result).__name__
        match result:
            case Retry(after_seconds):
                backoff = min(60.0, 2.0**lease.attempt)
                self._queue.nack(lease, backoff if after_seconds is None else after_seconds)
            case GiveBack():
                self._queue.nack(lease, 0.0)
            case _:
                self._queue.ack(lease)
