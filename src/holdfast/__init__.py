"""Holdfast keeps long-running queue work alive until it is done, and counts it exactly once."""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "aws.heartbeat": "SQSHeartbeat",
        "queues.sqs": "SQSQueue",
        "queues.files": "FilesystemQueue LocalFileQueue",
        "queues.sqlite.queue": "SQLiteQueue",
        "app.application": "Holdfast",
        "queues.opening": "open_queue",
        "chat.building": "open_conversations",
        "exports.building": "open_jobs",
        "lease.backoff": "Backoff",
        "errors": "AttemptFailed ConfigError HandlerNotFound HoldfastError InvalidName "
        "LeaseLost MalformedMessage MessageTooLarge NewerSchema NotLeased QueueUnavailable "
        "StoreUnavailable Unsupported",
        "events": "Events",
        "lease.keeper": "LeaseKeeper",
        "lease.lease": "Lease LeaseSource LeaseState Refused Renewed Unanswered",
        "queue.admission": "Delivery",
        "queue.aio": "AsyncQueue",
        "queue.info": "MessageInfo QueueStats",
        "queue.manager": "QueueManager",
        "queue.message": "AnyMessage EnrichmentMessage Message MessageCodec MessageState "
        "QueueMessage attach_lease",
        "queue.operator": "QueueOperator",
        "worker.runner": "Context",
        "worker.outcome": "Done GiveBack Reject Retry",
        "worker.settle": "WorkerReport",
        "worker.worker": "Worker",
    },
)
