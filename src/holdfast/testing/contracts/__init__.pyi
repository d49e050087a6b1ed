# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.testing.contracts.queue.contract import QueueContract as QueueContract
