"""Fakes that keep the contracts: clocks that a test controls, queues, jobs, conversations and
Amazon's services in memory. `run_once` calls a handler as a worker would.

They are loaded on first use, because pytest imports this package in every project of an
environment that has Holdfast installed, and a project should not load what it does not use.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.chat.sqlite_conversations import MemoryConversations as MemoryConversations
    from holdfast.exports.simulated_step_functions import (
        SimulatedStepFunctions as SimulatedStepFunctions,
    )
    from holdfast.exports.sqlite_jobs import MemoryJobs as MemoryJobs
    from holdfast.queues.sqlite.memory_queue import MemoryQueue as MemoryQueue
    from holdfast.queues.sqlite.memory_queue import MemoryQueueFactory as MemoryQueueFactory
    from holdfast.testing.clock import ManualClock as ManualClock
    from holdfast.testing.clock import SkippingClock as SkippingClock
    from holdfast.testing.handlers import FakeContext as FakeContext
    from holdfast.testing.handlers import arun_once as arun_once
    from holdfast.testing.handlers import run_once as run_once
    from holdfast.testing.sqs.service import SimulatedSqs as SimulatedSqs

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "testing.clock": "ManualClock SkippingClock",
        "testing.handlers": "FakeContext arun_once run_once",
        "chat.sqlite_conversations": "MemoryConversations",
        "exports.sqlite_jobs": "MemoryJobs",
        "queues.sqlite.memory_queue": "MemoryQueue MemoryQueueFactory",
        "testing.sqs.service": "SimulatedSqs",
        "exports.simulated_step_functions": "SimulatedStepFunctions",
    },
)
