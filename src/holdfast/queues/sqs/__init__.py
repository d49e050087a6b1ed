"""The queue contract on Amazon SQS."""

from holdfast._lazy import lazy_exports

# An SQSHeartbeat needs the address of a queue, and neither the queue nor pydantic.
__all__, __getattr__ = lazy_exports(__name__, {"queues.sqs.queue": "SQSQueue"})
