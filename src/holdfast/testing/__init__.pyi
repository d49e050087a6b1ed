# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.chat.sqlite_conversations import MemoryConversations as MemoryConversations
from holdfast.exports.sqlite_jobs import MemoryJobs as MemoryJobs
from holdfast.queues.sqlite.memory_queue import MemoryQueue as MemoryQueue
from holdfast.queues.sqlite.memory_queue import MemoryQueueFactory as MemoryQueueFactory
from holdfast.testing.clock import ManualClock as ManualClock
from holdfast.testing.clock import SkippingClock as SkippingClock
from holdfast.testing.handlers import FakeContext as FakeContext
from holdfast.testing.handlers import arun_once as arun_once
from holdfast.testing.handlers import run_once as run_once
from holdfast.testing.sqs.service import SimulatedSqs as SimulatedSqs
