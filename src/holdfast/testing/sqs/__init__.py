"""A simulation of Amazon SQS in this process, whose clock and failures a test controls.

    service.py    SimulatedSqs, which a test makes and inspects
    client.py     the methods and the argument checks of a boto3 client
    registry.py   queues by name: create, find, configure, delete
    sending.py, receiving.py, visibility.py, moves.py   the operations
    queue.py, message.py, attributes.py                 the state of a queue
    faults.py, calls.py                                 scripted failures and recorded calls
    errors.py                                           AWS's error codes, in one table

Where AWS differs from its documentation, the simulation follows AWS's recorded responses.
"""

from holdfast.testing.sqs.calls import RecordedCall
from holdfast.testing.sqs.service import SimulatedSqs

__all__ = ["RecordedCall", "SimulatedSqs"]
