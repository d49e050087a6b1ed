"""Receiving: a long poll that its caller can leave at once.

A receive cannot be called off, and what it brings after its caller has left would stay
hidden for a whole lease. So it runs in a thread of its own; one that was left gives back
what it brings. Threads wait a moment for the next call before they end: starting one
takes as long as a good part of the call.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock, Thread
from typing import Any

Raw = Mapping[str, Any]

_GLANCE_SECONDS = 0.05  # between two looks at `stop`, which cannot wake us
_SPARE_SECONDS = 1.0


class LongPoll:
    """One call in the making: `run` it once."""

    def __init__(
        self,
        receive: Callable[[], Sequence[Raw]],
        give_back: Callable[[Sequence[Raw]], None],
    ) -> None:
        self._receive, self._give_back = receive, give_back
        self._ended = Lock()
        self._ended.acquire()
        self._deciding = Lock()
        self._left = False
        self._brought: Sequence[Raw] = ()
        self._error: BaseException | None = None

    def run(self, stop: Event) -> Sequence[Raw]:
        """What the call brings; nothing once `stop` is set."""
        _have_called(self)
        while not self._ended.acquire(timeout=_GLANCE_SECONDS):
            if stop.is_set() and self._leaves():
                break
        if self._error is not None:
            raise self._error
        return self._brought

    def _leaves(self) -> bool:
        """False when the call has ended after all, and its messages must be taken."""
        with self._deciding:
            self._left = self._ended.locked()
            return self._left

    def call(self, free: Callable[[], None]) -> None:
        """In the other thread, which says that it is `free` before anybody is woken."""
        try:
            brought = self._receive()
        except BaseException as error:  # for whoever waits, if anybody still does
            self._error, brought = error, ()
        with self._deciding:
            if not self._left:
                self._brought = brought
                free()
                self._ended.release()
                return
        if brought:
            self._give_back(brought)
        free()


class _Caller(Thread):
    """Makes one call after another, and ends when none comes for a while."""

    def __init__(self, poll: LongPoll) -> None:
        super().__init__(name="holdfast-sqs-receive", daemon=True)
        self._poll: LongPoll | None = poll
        self._called = Lock()
        self._called.acquire()

    def call(self, poll: LongPoll) -> None:
        self._poll = poll
        self._called.release()

    def run(self) -> None:
        while self._poll is not None:
            poll, self._poll = self._poll, None
            poll.call(self._free)
            del poll  # or what it brought would live as long as this thread is idle
            if not self._called.acquire(timeout=_SPARE_SECONDS):
                self._retire()

    def _free(self) -> None:
        _spare.append(self)

    def _retire(self) -> None:
        try:
            _spare.remove(self)
        except ValueError:  # somebody has just taken us: there is one more call
            self._called.acquire()


_spare: list[_Caller] = []
os.register_at_fork(after_in_child=_spare.clear)  # a child has none of the threads


def _have_called(poll: LongPoll) -> None:
    try:
        caller = _spare.pop()
    except IndexError:
        _Caller(poll).start()
    else:
        caller.call(poll)
