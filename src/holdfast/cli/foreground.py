"""Work in the foreground, and the person who may want it to stop.

The work has a thread of its own. The main thread only waits, draws and takes signals, so a
signal never interrupts the work in the middle of a step.

    running ─ Ctrl-C or SIGTERM ─▶ draining ─ again ─▶ stopping now ─ again ─▶ gone
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Generic, Protocol, TypeVar

from holdfast.cli.console import info
from holdfast.cli.durations import in_words
from holdfast.cli.status_line import LiveStatus
from holdfast.core.clock import SYSTEM_CLOCK

_LOOK_SECONDS = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Runnable(Protocol[R_co]):
    """Something that works until it is done, or told to stop from another thread."""

    @property
    def running(self) -> int:
        """How much is under way, for the person who asks it to stop."""

    def run(self) -> R_co: ...

    def stop(self) -> None:
        """Begin nothing more; what runs may finish."""

    def stop_now(self) -> None:
        """End what runs."""


class ForegroundRunner(Generic[R]):
    """One stint, from its start to its end. `first_signal` and `stopped_now_by` are the
    numbers of the signals that asked it to drain and to stop; 0: nobody did."""

    def __init__(self, stint: Runnable[R], screen: LiveStatus, drain: float) -> None:
        self._stint, self._screen, self._drain = stint, screen, drain
        self._over = Event()
        self._signals: list[int] = []
        self._heard = 0
        self._results: list[R] = []
        self._error: BaseException | None = None
        self.first_signal = 0
        self.stopped_now_by = 0

    def run(self) -> R:
        thread = Thread(target=self._work, name="holdfast-worker")
        with _signals_to(self._signals), self._screen:
            thread.start()
            while not SYSTEM_CLOCK.wait(self._over, _LOOK_SECONDS):
                self._listen()
                self._screen.draw()
            thread.join()
        if self._error is not None:
            raise self._error
        [result] = self._results
        return result

    def _work(self) -> None:
        try:
            self._results.append(self._stint.run())
        except BaseException as error:  # it is raised again where it can be told
            self._error = error
        finally:
            self._over.set()

    def _listen(self) -> None:
        while self._heard < len(self._signals):
            self._heard += 1
            self._obey(self._heard, self._signals[self._heard - 1])

    def _obey(self, time: int, number: int) -> None:
        match time:
            case 1:
                self.first_signal = number
                running = self._stint.running
                self._stint.stop()
                info(
                    f"draining: {running} running, up to {in_words(self._drain)}; "
                    "Ctrl-C again stops now"
                )
            case 2:
                running = self._stint.running
                self._stint.stop_now()
                self.stopped_now_by = number
                info(f"stopping now: {running} running, to be given back")
            case _:
                # Even the end hangs. The leases run out, and the work comes back.
                os._exit(128 + number)


@contextmanager
def _signals_to(heard: list[int]) -> Iterator[None]:
    """Note signals and do nothing else: a handler must not touch what it interrupts."""

    def note(number: int, frame: object) -> None:
        heard.append(number)

    before = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
