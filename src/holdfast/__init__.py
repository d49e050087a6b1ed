"""Holdfast keeps long-running queue work alive until it is done, and counts it exactly once."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.aws.heartbeat import (
        SQSHeartbeat,
    )
    from holdfast.adapters.aws.sqs import (
        SQSQueue,
    )
    from holdfast.adapters.local.filesystem import (
        FilesystemQueue,
        LocalFileQueue,
    )
    from holdfast.bootstrap import (
        open_queue,
    )
    from holdfast.bootstrap.chats import (
        open_conversations,
    )
    from holdfast.bootstrap.exports import (
        open_jobs,
    )
    from holdfast.core.backoff import (
        Backoff,
    )
    from holdfast.core.errors import (
        ConfigError,
        HandlerNotFound,
        HoldfastError,
        InvalidName,
        LeaseLost,
        MalformedMessage,
        MessageTooLarge,
        NewerSchema,
        NotLeased,
        QueueUnavailable,
        StoreUnavailable,
        Unsupported,
    )
    from holdfast.core.events import (
        Events,
    )
    from holdfast.core.lease.keeper import (
        LeaseKeeper,
    )
    from holdfast.core.lease.lease import (
        Lease,
        LeaseSource,
        LeaseState,
        Refused,
        Renewed,
        Unanswered,
    )
    from holdfast.core.queue.manager import (
        MessageInfo,
        MessageState,
        QueueManager,
        QueueStats,
    )
    from holdfast.core.queue.message import (
        AnyMessage,
        MessageCodec,
        QueueMessage,
        attach_lease,
    )
    from holdfast.core.worker.context import (
        Context,
    )
    from holdfast.core.worker.outcome import (
        Done,
        GiveBack,
        Reject,
        Retry,
    )
    from holdfast.core.worker.settle import (
        WorkerReport,
    )
    from holdfast.core.worker.worker import (
        Worker,
    )

_HOMES = {
    "adapters.aws.heartbeat": ["SQSHeartbeat"],
    "adapters.aws.sqs": ["SQSQueue"],
    "adapters.local.filesystem": ["FilesystemQueue", "LocalFileQueue"],
    "bootstrap": ["open_queue"],
    "bootstrap.chats": ["open_conversations"],
    "bootstrap.exports": ["open_jobs"],
    "core.backoff": ["Backoff"],
    "core.errors": [
        "ConfigError",
        "HandlerNotFound",
        "HoldfastError",
        "InvalidName",
        "LeaseLost",
        "MalformedMessage",
        "MessageTooLarge",
        "NewerSchema",
        "NotLeased",
        "QueueUnavailable",
        "StoreUnavailable",
        "Unsupported",
    ],
    "core.events": ["Events"],
    "core.lease.keeper": ["LeaseKeeper"],
    "core.lease.lease": [
        "Lease",
        "LeaseSource",
        "LeaseState",
        "Refused",
        "Renewed",
        "Unanswered",
    ],
    "core.queue.manager": ["MessageInfo", "MessageState", "QueueManager", "QueueStats"],
    "core.queue.message": ["AnyMessage", "MessageCodec", "QueueMessage", "attach_lease"],
    "core.worker.context": ["Context"],
    "core.worker.settle": ["WorkerReport"],
    "core.worker.outcome": ["Done", "GiveBack", "Reject", "Retry"],
    "core.worker.worker": ["Worker"],
}

__all__ = [  # made by __getattr__ below
    "AnyMessage",
    "Backoff",
    "ConfigError",
    "Context",
    "Done",
    "Events",
    "FilesystemQueue",
    "GiveBack",
    "HandlerNotFound",
    "HoldfastError",
    "InvalidName",
    "Lease",
    "LeaseKeeper",
    "LeaseLost",
    "LeaseSource",
    "LeaseState",
    "LocalFileQueue",
    "MalformedMessage",
    "MessageCodec",
    "MessageInfo",
    "MessageState",
    "MessageTooLarge",
    "NewerSchema",
    "NotLeased",
    "QueueManager",
    "QueueMessage",
    "QueueStats",
    "QueueUnavailable",
    "Refused",
    "Reject",
    "Renewed",
    "Retry",
    "SQSHeartbeat",
    "SQSQueue",
    "StoreUnavailable",
    "Unanswered",
    "Unsupported",
    "Worker",
    "WorkerReport",
    "attach_lease",
    "open_conversations",
    "open_jobs",
    "open_queue",
]

__getattr__ = lazy_exports(__name__, _HOMES)
