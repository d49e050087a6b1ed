"""The process runner: N slots, each with a child process."""

from collections.abc import Callable
from math import inf
from threading import Event

from holdfast.core.clock import Clock
from holdfast.core.queue.message import M
from holdfast.core.worker.executor import Executor
from holdfast.core.worker.fetcher import Fetcher
from holdfast.core.worker.runner import SlotRunner
from holdfast.core.worker.settle import InFlight


class ProcessRunner(SlotRunner[M]):
    """Runs handlers in child processes. The watchdog of each slot enforces the limits."""

    # For stack dumps to be written, and for the kernel to end killed processes.
    exit_timeout_seconds = 15.0

    def __init__(
        self,
        count: int,
        make_executor: Callable[[], Executor[M]],
        fetcher: Fetcher[M],
        in_flight: InFlight[M],
        clock: Clock,
        *,
        cancel_running: Event,
    ) -> None:
        super().__init__(count, make_executor, fetcher, in_flight, clock)
        self._cancel_running = cancel_running

    def watch(self, now: float) -> float:
        """Do nothing, because the watchdog of each slot watches its child."""
        return inf

    def cancel_running(self) -> None:
        """Have every watchdog end its child and give back the message."""
        self._cancel_running.set()
