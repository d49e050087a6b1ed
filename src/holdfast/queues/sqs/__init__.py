"""The queue contract on Amazon SQS."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.queues.sqs.queue import SQSQueue as SQSQueue

# An SQSHeartbeat needs the address of a queue, and neither the queue nor pydantic.
__all__, __getattr__ = lazy_exports(__name__, {"queues.sqs.queue": "SQSQueue"})
