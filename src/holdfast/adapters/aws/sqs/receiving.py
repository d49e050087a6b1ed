"""Receiving: a long poll that its caller can leave at once.

A receive cannot be called off, and what it brings after its caller has left would stay
hidden for a whole lease. So it runs in a thread of its own; one that was left gives back
what it brings.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock, Thread
from typing import Any

Raw = Mapping[str, Any]

_GLANCE_SECONDS = 0.05  # between two looks at `stop`, which cannot wake us


class LongPoll:
    """One call in the making: `run` it once."""

    def __init__(
        self,
        receive: Callable[[], Sequence[Raw]],
        give_back: Callable[[Sequence[Raw]], None],
    ) -> None:
        self._receive, self._give_back = receive, give_back
        self._ended = Event()
        self._deciding = Lock()
        self._left = False
        self._brought: Sequence[Raw] = ()
        self._error: BaseException | None = None

    def run(self, stop: Event) -> Sequence[Raw]:
        """What the call brings; nothing once `stop` is set."""
        thread = Thread(target=self._run, name="holdfast-sqs-receive", daemon=True)
        thread.start()
        while not self._ended.wait(_GLANCE_SECONDS):
            if stop.is_set():
                break
        with self._deciding:
            self._left = not self._ended.is_set()
        if self._error is not None:
            raise self._error
        return self._brought

    def _run(self) -> None:
        try:
            brought = self._receive()
        except BaseException as error:  # for whoever waits, if anybody still does
            self._error, brought = error, ()
        with self._deciding:
            if not self._left:
                self._brought = brought
                self._ended.set()
                return
        if brought:
            self._give_back(brought)
