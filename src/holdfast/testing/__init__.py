"""Fakes that keep the contracts: time by hand, a queue in memory, an SQS in memory.

Loaded on first use: pytest imports this package for every project of an environment that
has Holdfast installed, and none of them should pay for what it does not ask for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.memory_queue import MemoryQueue
    from holdfast.testing.sqs.service import SimulatedSqs

__all__ = ["ManualClock", "MemoryQueue", "SimulatedSqs"]


def __getattr__(name: str) -> Any:
    match name:
        case "ManualClock":
            from holdfast.testing.clock import ManualClock

            return ManualClock
        case "MemoryQueue":
            from holdfast.testing.memory_queue import MemoryQueue

            return MemoryQueue
        case "SimulatedSqs":
            from holdfast.testing.sqs.service import SimulatedSqs

            return SimulatedSqs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
