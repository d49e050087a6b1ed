"""Fakes that keep the contracts: a manual clock, and queues, jobs, conversations and
Amazon's services in memory.

They are loaded on first use, because pytest imports this package in every project of an
environment that has Holdfast installed, and a project should not load what it does not use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.memory_conversations import MemoryConversations
    from holdfast.testing.memory_jobs import MemoryJobs
    from holdfast.testing.memory_queue import MemoryQueue
    from holdfast.testing.sqs.service import SimulatedSqs
    from holdfast.testing.stepfunctions import SimulatedStepFunctions

_MODULES = {
    "ManualClock": "clock",
    "MemoryConversations": "memory_conversations",
    "MemoryJobs": "memory_jobs",
    "MemoryQueue": "memory_queue",
    "SimulatedSqs": "sqs.service",
    "SimulatedStepFunctions": "stepfunctions",
}

__all__ = [  # loaded by __getattr__ below
    "ManualClock",
    "MemoryConversations",
    "MemoryJobs",
    "MemoryQueue",
    "SimulatedSqs",
    "SimulatedStepFunctions",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
