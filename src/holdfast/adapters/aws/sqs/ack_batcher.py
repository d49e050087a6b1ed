"""Acks that come together leave together: ten to a call, after a few milliseconds at most.

Nobody deletes for others in the background, so no ack returns before SQS has answered.
The first to come leads: it waits a moment for company, takes up to ten along in one call,
and hands each its answer. Whoever comes while it calls leads the next one.

Each sleeps until its own answer is there, and the leader until all are: were everybody
woken by everybody's coming, ten threads would spend more time waking than working.
"""

from collections.abc import Callable, Sequence
from threading import Condition, Lock
from typing import Generic, TypeVar

from holdfast.adapters.aws.sqs.queue_client import BATCH

GATHER_SECONDS = 0.005

T = TypeVar("T")
R = TypeVar("R")


class _Ticket(Generic[T, R]):
    __slots__ = ("answer", "called", "done", "error", "thing")

    def __init__(self, thing: T) -> None:
        self.thing = thing
        self.called = Lock()  # let go of when it is done, or when it is to lead
        self.called.acquire()
        self.done = False
        self.answer: R
        self.error: BaseException | None = None


class AckBatcher(Generic[T, R]):
    """Calls `together` with what several threads hand in, up to ten things at a time.

    `expected` says how many could come at all: nobody waits for company that cannot.
    """

    def __init__(
        self, together: Callable[[Sequence[T]], Sequence[R]], expected: Callable[[], int]
    ) -> None:
        self._together, self._expected = together, expected
        self._full = Condition()  # only a leader waits for it
        self._waiting: list[_Ticket[T, R]] = []
        self._leader: _Ticket[T, R] | None = None

    def hand_in(self, thing: T) -> R:
        """The answer for this thing. Raises what the call raised."""
        ticket: _Ticket[T, R] = _Ticket(thing)
        try:
            if not self._joins(ticket):
                ticket.called.acquire()
            if not ticket.done:
                self._lead(ticket)
        except BaseException:  # Ctrl-C while it waited
            self._leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer

    def _joins(self, ticket: _Ticket[T, R]) -> bool:
        """True for the one that is to lead."""
        with self._full:
            self._waiting.append(ticket)
            if self._leader is None:
                self._leader = ticket
                return True
            if self._all_here():
                self._full.notify()
            return False

    def _lead(self, ticket: _Ticket[T, R]) -> None:
        with self._full:
            self._full.wait_for(self._all_here, GATHER_SECONDS)
            others = [other for other in self._waiting if other is not ticket]
            batch = [ticket, *others[: BATCH - 1]]
            self._waiting = others[BATCH - 1 :]
            self._hand_over()
        self._call(batch)

    def _leave(self, ticket: _Ticket[T, R]) -> None:
        """Nobody may wait for a leader who has left."""
        with self._full:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if self._leader is ticket:
                self._hand_over()

    def _hand_over(self) -> None:
        """Under the lock."""
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.called.release()

    def _all_here(self) -> bool:
        return len(self._waiting) >= min(BATCH, self._expected())

    def _call(self, batch: Sequence[_Ticket[T, R]]) -> None:
        try:
            answers = self._together([ticket.thing for ticket in batch])
            for ticket, answer in zip(batch, answers, strict=True):
                ticket.answer = answer
        except BaseException as error:  # each who waits must hear of it
            for ticket in batch:
                ticket.error = error
        finally:
            for ticket in batch:
                ticket.done = True
                ticket.called.release()
