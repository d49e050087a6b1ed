"""Amazon SQS in this process: its rules, its clock in your hands, its failures on request.

    service.py    SimulatedSqs: what a test makes and looks at
    client.py     the methods and the argument checks of a boto3 client
    registry.py   queues by name: make, find, configure, delete
    sending.py, receiving.py, holding.py, moves.py      the operations
    queue.py, message.py, settings.py                   what a queue keeps
    faults.py, calls.py                                 what a test scripts and counts
    refusals.py                                         AWS's error codes, in one table

Where AWS's documentation and AWS differ, AWS's recorded answers win.
"""

from holdfast.testing.sqs.calls import RecordedCall
from holdfast.testing.sqs.service import SimulatedSqs

__all__ = ["RecordedCall", "SimulatedSqs"]
