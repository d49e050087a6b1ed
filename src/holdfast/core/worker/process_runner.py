"""The process runner: N slots, each with a child process."""

from math import inf

from holdfast.core.queue.message import M
from holdfast.core.worker.runner import SlotRunner


class ProcessRunner(SlotRunner[M]):
    """Runs handlers in child processes. The watchdog of each slot enforces the limits."""

    # For stack dumps to be written, and for the kernel to end killed processes.
    exit_timeout_seconds = 15.0

    def watch(self, now: float) -> float:
        """Do nothing, because the watchdog of each slot watches its child."""
        return inf

    def cancel_running(self) -> None:
        """Do nothing, because every watchdog ends its child when the run gives up."""
