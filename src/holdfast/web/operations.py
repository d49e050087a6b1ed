"""Redrive and drop many dead letters, in a thread that reports how far it is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock, Thread

from holdfast.errors import HoldfastError
from holdfast.lease.clock import Clock, to_utc
from holdfast.queue.info import MessageInfo
from holdfast.web.console import WatchedQueue

MAX_KEPT = 100
Batches = Iterable[list[MessageInfo]]


@dataclass(slots=True)
class Operation:
    """One action on many dead letters. Its counts grow until `is_done`."""

    number: int
    verb: str  # redrive | drop
    queue: WatchedQueue
    author: str
    started: datetime
    total: int | None = None  # None if it is unknown how many will be chosen
    seen: int = 0
    done: int = 0
    is_done: bool = False
    problem: str = field(default="")

    @property
    def past_verb(self) -> str:
        """The verb in the past tense."""
        return "redriven" if self.verb == "redrive" else "dropped"


class Operations:
    """The operations of this console, the last of which are kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, Lock()
        self._kept: dict[int, Operation] = {}
        self._last = 0

    def get(self, number: int) -> Operation | None:
        """Return an operation, or None if there is none or it was forgotten."""
        return self._kept.get(number)

    def start(
        self,
        verb: str,
        queue: WatchedQueue,
        batches: Batches,
        *,
        author: str,
        total: int | None,
        on_end: Callable[[Operation], None],
    ) -> Operation:
        """Apply a verb to all batches, in a thread of its own."""
        started = to_utc(self._clock.time())
        with self._lock:
            self._last += 1
            operation = Operation(self._last, verb, queue, author, started, total)
            self._kept[self._last] = operation
            while len(self._kept) > MAX_KEPT:
                del self._kept[min(self._kept)]
        Thread(
            target=_run, args=(operation, batches, on_end), name="holdfast-web-operation",
            daemon=True,
        ).start()  # fmt: skip
        return operation


def _run(operation: Operation, batches: Batches, on_end: Callable[[Operation], None]) -> None:
    try:
        queue = operation.queue.watch.get_queue()
        apply = queue.redrive_many if operation.verb == "redrive" else queue.drop_many
        for batch in batches:
            operation.done += apply(batch)
            operation.seen += len(batch)
    except (HoldfastError, OSError) as error:
        operation.problem = str(error)
    except Exception as error:
        operation.problem = f"this is a bug in Holdfast: {type(error).__name__}"
        raise
    finally:
        operation.is_done = True
        operation.queue.watch.expire()
        on_end(operation)
