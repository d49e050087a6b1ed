"""Run work in the foreground until it ends or a signal stops it.

The work has its own thread. The main thread only waits, draws and receives signals, so a
signal never interrupts the work in the middle of a step.

    running ─ Ctrl-C or SIGTERM ─▶ draining ─ again ─▶ stopping now ─ again ─▶ exit
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Generic, Protocol, TypeVar

from holdfast.cli.console import info
from holdfast.cli.durations import format_duration
from holdfast.cli.status_line import LiveStatus
from holdfast.core.clock import SYSTEM_CLOCK

_POLL_SECONDS = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Runnable(Protocol[R_co]):
    """Work that runs until it is done, or until another thread stops it."""

    @property
    def running(self) -> int:
        """Return how many tasks are running."""

    def run(self) -> R_co:
        """Run to the end and return the result."""

    def stop(self) -> None:
        """Start nothing more. Running tasks may finish."""

    def stop_now(self) -> None:
        """End the running tasks."""


class ForegroundRunner(Generic[R]):
    """Runs one Runnable from start to end.

    `first_signal` and `stopped_now_by` are the numbers of the signals that made it drain and
    stop, or 0.
    """

    def __init__(self, runnable: Runnable[R], status: LiveStatus, drain_seconds: float) -> None:
        self._runnable, self._status = runnable, status
        self._drain_seconds = drain_seconds
        self._over = Event()
        self._signals: list[int] = []
        self._handled = 0
        self._results: list[R] = []
        self._error: BaseException | None = None
        self.first_signal = 0
        self.stopped_now_by = 0

    def run(self) -> R:
        """Run the work, and return its result or raise its error."""
        thread = Thread(target=self._work, name="holdfast-worker")
        with _collect_signals(self._signals), self._status:
            thread.start()
            while not SYSTEM_CLOCK.wait(self._over, _POLL_SECONDS):
                self._handle_signals()
                self._status.draw()
            thread.join()
        if self._error is not None:
            raise self._error
        [result] = self._results
        return result

    def _work(self) -> None:
        try:
            self._results.append(self._runnable.run())
        except BaseException as error:  # run() raises it again in the main thread
            self._error = error
        finally:
            self._over.set()

    def _handle_signals(self) -> None:
        while self._handled < len(self._signals):
            self._handled += 1
            self._handle_signal(self._handled, self._signals[self._handled - 1])

    def _handle_signal(self, count: int, number: int) -> None:
        match count:
            case 1:
                self.first_signal = number
                running = self._runnable.running
                self._runnable.stop()
                info(
                    f"draining: {running} running, "
                    f"up to {format_duration(self._drain_seconds)}; Ctrl-C again stops now"
                )
            case 2:
                running = self._runnable.running
                self._runnable.stop_now()
                self.stopped_now_by = number
                info(f"stopping now: giving back {running} running")
            case _:
                # Stopping hangs. When the leases end, the messages are redelivered.
                os._exit(128 + number)


@contextmanager
def _collect_signals(received: list[int]) -> Iterator[None]:
    """Record signals and do nothing else, because a handler must not touch what it
    interrupts."""

    def record(number: int, frame: object) -> None:
        received.append(number)

    before = {number: signal.signal(number, record) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
