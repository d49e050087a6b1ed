"""Receive with a long poll that its caller can leave at once.

A receive cannot be cancelled, and messages that it brings after its caller has left would
stay hidden for a complete lease. So it runs in a thread of its own, and a thread whose caller
has left gives back the messages. Threads wait a moment for the next call before they end,
because starting one takes a good part of the time of a call.
"""

import os
from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread

from holdfast.queues.sqs.queue_client import RawMessage

_STOP_CHECK_SECONDS = 0.05  # between two checks of `stop`, which cannot wake this thread
_IDLE_SECONDS = 1.0


class LongPoll:
    """One receive call. `run` may be called once."""

    def __init__(
        self,
        receive: Callable[[], Sequence[RawMessage]],
        give_back: Callable[[Sequence[RawMessage]], None],
    ) -> None:
        self._receive, self._give_back = receive, give_back
        self._ended = Lock()
        self._ended.acquire()
        self._deciding = Lock()
        self._left = False
        self._messages: Sequence[RawMessage] = ()
        self._error: BaseException | None = None

    def run(self, stop: Event) -> Sequence[RawMessage]:
        """Return the messages of the call, or none as soon as `stop` is set."""
        _start_call(self)
        while not self._ended.acquire(timeout=_STOP_CHECK_SECONDS):
            if stop.is_set() and self._try_leave():
                break
        if self._error is not None:
            raise self._error
        return self._messages

    def _try_leave(self) -> bool:
        """Return False if the call has just ended, so that its messages must be taken."""
        with self._deciding:
            self._left = self._ended.locked()
            return self._left

    def call(self, mark_idle: Callable[[], None]) -> None:
        """Make the call, in the other thread, and pass on or give back its messages.

        `mark_idle` is called before the caller is woken, so that the caller's next poll finds
        this thread idle.
        """
        try:
            messages = self._receive()
        except BaseException as error:  # for the caller, if it has not left
            self._error, messages = error, ()
        with self._deciding:
            if not self._left:
                self._messages = messages
                mark_idle()
                self._ended.release()
                return
        if messages:
            self._give_back(messages)
        mark_idle()


class _ReceiveThread(Thread):
    """Makes one call after another, and ends if none comes for a while."""

    def __init__(self, poll: LongPoll) -> None:
        super().__init__(name="holdfast-sqs-receive", daemon=True)
        self._poll: LongPoll | None = poll
        self._wakeup = Lock()
        self._wakeup.acquire()

    def call(self, poll: LongPoll) -> None:
        self._poll = poll
        self._wakeup.release()

    def run(self) -> None:
        while self._poll is not None:
            poll, self._poll = self._poll, None
            poll.call(self._mark_idle)
            del poll  # otherwise its messages would live as long as this thread is idle
            if not self._wakeup.acquire(timeout=_IDLE_SECONDS):
                self._retire()

    def _mark_idle(self) -> None:
        _idle_threads.append(self)

    def _retire(self) -> None:
        try:
            _idle_threads.remove(self)
        except ValueError:  # a poll has just taken this thread, so there is one more call
            self._wakeup.acquire()


_idle_threads: list[_ReceiveThread] = []
os.register_at_fork(after_in_child=_idle_threads.clear)  # a child has none of the threads


def _start_call(poll: LongPoll) -> None:
    try:
        thread = _idle_threads.pop()
    except IndexError:
        _ReceiveThread(poll).start()
    else:
        thread.call(poll)
