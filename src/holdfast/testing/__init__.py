"""Fakes that keep the contracts: a manual clock, and queues, jobs, conversations and
Amazon's services in memory.

They are loaded on first use, because pytest imports this package in every project of an
environment that has Holdfast installed, and a project should not load what it does not use.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock as ManualClock
    from holdfast.testing.memory_conversations import MemoryConversations as MemoryConversations
    from holdfast.testing.memory_jobs import MemoryJobs as MemoryJobs
    from holdfast.testing.memory_queue import MemoryQueue as MemoryQueue
    from holdfast.testing.sqs.service import SimulatedSqs as SimulatedSqs
    from holdfast.testing.stepfunctions import SimulatedStepFunctions as SimulatedStepFunctions

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "testing.clock": "ManualClock",
        "testing.memory_conversations": "MemoryConversations",
        "testing.memory_jobs": "MemoryJobs",
        "testing.memory_queue": "MemoryQueue",
        "testing.sqs.service": "SimulatedSqs",
        "testing.stepfunctions": "SimulatedStepFunctions",
    },
)
