"""A simulation of Amazon SQS in this process, whose clock and failures a test controls.

    service.py    SimulatedSqs, which a test makes and inspects, its clients and recorded calls
    registry.py   queues by name: create, find, configure, delete
    sending.py, receiving.py, moves.py   the operations; batch.py, their batches
    queue.py, message.py, attributes.py  the state of a queue
    faults.py                            scripted failures
    errors.py                            AWS's error codes, in one table

Where AWS differs from its documentation, the simulation follows AWS's recorded responses.
"""

from holdfast.testing.sqs.service import RecordedCall, SimulatedSqs

__all__ = ["RecordedCall", "SimulatedSqs"]
