"""A simulation of Amazon SQS in this process, whose clock and failures a test controls.

    service.py    SimulatedSqs, which a test makes and inspects, its clients and recorded calls
    registry.py   queues by name: create, find, configure and delete
    message_calls.py        the operations on messages
    queue.py, message.py    the state of a queue
    faults.py               scripted failures
    errors.py               AWS's error codes, and the ranges of its parameters

Where AWS differs from its documentation, the simulation follows AWS's recorded responses.
"""

from holdfast.testing.sqs.service import RecordedCall, SimulatedSqs

__all__ = ["RecordedCall", "SimulatedSqs"]
