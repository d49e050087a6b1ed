"""Send acks of several threads together, ten to a call, after a few milliseconds at most.

No thread deletes for others in the background, so no ack returns before SQS has responded.
The first thread to arrive leads: it waits a moment for others, sends up to ten items in one
call, and passes each thread its result. A thread that arrives during that call leads the
next one.

Each thread sleeps until its own result arrives, and the leader sleeps until the batch is
complete. If every arrival woke every thread, ten threads would spend more time waking up
than working.
"""

from collections.abc import Callable, Sequence
from threading import Condition, Lock
from typing import Generic, TypeVar

from holdfast.adapters.aws.sqs.queue_client import MAX_BATCH_ENTRIES

GATHER_SECONDS = 0.005

T = TypeVar("T")
R = TypeVar("R")


class _Ticket(Generic[T, R]):
    __slots__ = ("done", "error", "item", "result", "wakeup")

    def __init__(self, item: T) -> None:
        self.item = item
        self.wakeup = Lock()  # released when the item is done, or when its thread is to lead
        self.wakeup.acquire()
        self.done = False
        self.result: R
        self.error: BaseException | None = None


class AckBatcher(Generic[T, R]):
    """Calls `call_batch` with the items of several threads, up to ten at a time.

    `count_expected` returns how many items can arrive at all, so that no leader waits for
    items that cannot come.
    """

    def __init__(
        self,
        call_batch: Callable[[Sequence[T]], Sequence[R]],
        count_expected: Callable[[], int],
    ) -> None:
        self._call_batch, self._count_expected = call_batch, count_expected
        self._complete = Condition()  # only a leader waits for it
        self._waiting: list[_Ticket[T, R]] = []
        self._leader: _Ticket[T, R] | None = None

    def submit(self, item: T) -> R:
        """Send the item with a batch and return its result. Raises what the call raised."""
        ticket: _Ticket[T, R] = _Ticket(item)
        try:
            if not self._join(ticket):
                ticket.wakeup.acquire()
            if not ticket.done:
                self._lead(ticket)
        except BaseException:  # Ctrl-C while it waited
            self._leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def _join(self, ticket: _Ticket[T, R]) -> bool:
        """Add the ticket and return whether its thread is to lead."""
        with self._complete:
            self._waiting.append(ticket)
            if self._leader is None:
                self._leader = ticket
                return True
            if self._is_complete():
                self._complete.notify()
            return False

    def _lead(self, ticket: _Ticket[T, R]) -> None:
        with self._complete:
            self._complete.wait_for(self._is_complete, GATHER_SECONDS)
            others = [other for other in self._waiting if other is not ticket]
            batch = [ticket, *others[: MAX_BATCH_ENTRIES - 1]]
            self._waiting = others[MAX_BATCH_ENTRIES - 1 :]
            self._choose_leader()
        self._send(batch)

    def _leave(self, ticket: _Ticket[T, R]) -> None:
        """Remove the ticket, so that no thread waits for a leader that has left."""
        with self._complete:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if self._leader is ticket:
                self._choose_leader()

    def _choose_leader(self) -> None:
        """Let the next waiting thread lead. The caller must hold the lock."""
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.wakeup.release()

    def _is_complete(self) -> bool:
        return len(self._waiting) >= min(MAX_BATCH_ENTRIES, self._count_expected())

    def _send(self, batch: Sequence[_Ticket[T, R]]) -> None:
        try:
            results = self._call_batch([ticket.item for ticket in batch])
            for ticket, result in zip(batch, results, strict=True):
                ticket.result = result
        except BaseException as error:  # each waiting thread must receive it
            for ticket in batch:
                ticket.error = error
        finally:
            for ticket in batch:
                ticket.done = True
                ticket.wakeup.release()
