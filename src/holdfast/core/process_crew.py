"""A crew of processes: N slots with a child process each."""

from collections.abc import Callable
from threading import Event

from holdfast.core.clock import Clock
from holdfast.core.crew import Slots
from holdfast.core.executor import Executor
from holdfast.core.feed import Feed
from holdfast.core.ledger import Ledger
from holdfast.core.message import M


class ProcessCrew(Slots[M]):
    """Each slot watches its own child; all there is to say to them is when to cut off."""

    mercy_seconds = 15.0  # for stacks to be written, and the kernel to end what was killed

    def __init__(
        self,
        count: int,
        make_executor: Callable[[], Executor[M]],
        feed: Feed[M],
        ledger: Ledger[M],
        clock: Clock,
        *,
        cut_off: Event,
    ) -> None:
        super().__init__(count, make_executor, feed, ledger, clock)
        self._cut_off = cut_off

    def watch(self, now: float) -> None:
        """Nothing: the watchdog of each slot does."""

    def cut_off(self) -> None:
        self._cut_off.set()
