# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.queues.sqs.queue import SQSQueue as SQSQueue
