"""A crew of processes: N slots with a child process each."""

from collections.abc import Callable
from threading import Event

from holdfast.core.clock import Clock
from holdfast.core.queue.message import M
from holdfast.core.worker.executor import Executor
from holdfast.core.worker.fetcher import Fetcher
from holdfast.core.worker.in_flight import InFlight
from holdfast.core.worker.runner import SlotRunner


class ProcessRunner(SlotRunner[M]):
    """Each slot watches its own child; all there is to say to them is when to cut off."""

    exit_timeout_seconds = (
        15.0  # for stacks to be written, and the kernel to end what was killed
    )

    def __init__(
        self,
        count: int,
        make_executor: Callable[[], Executor[M]],
        feed: Fetcher[M],
        ledger: InFlight[M],
        clock: Clock,
        *,
        cancel_running: Event,
    ) -> None:
        super().__init__(count, make_executor, feed, ledger, clock)
        self._cut_off = cancel_running

    def watch(self, now: float) -> None:
        """Nothing: the watchdog of each slot does."""

    def cancel_running(self) -> None:
        self._cut_off.set()
