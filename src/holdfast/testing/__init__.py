"""Fakes that keep the contracts: clocks that a test controls, queues, jobs, conversations and
Amazon's services in memory. `run_once` calls a handler as a worker would.

They are loaded on first use, because pytest imports this package in every project of an
environment that has Holdfast installed, and a project should not load what it does not use.
"""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "testing.clock": "ManualClock SkippingClock",
        "testing.handlers": "FakeContext arun_once run_once",
        "chat.sqlite_conversations": "MemoryConversations",
        "exports.sqlite_jobs": "MemoryJobs",
        "queues.sqlite.memory_queue": "MemoryQueue MemoryQueueFactory",
        "testing.sqs.service": "SimulatedSqs",
    },
)
