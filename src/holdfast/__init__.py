"""Holdfast keeps long-running queue work alive until it is done, and counts it exactly once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.adapters.aws.heartbeat import SQSHeartbeat
    from holdfast.adapters.aws.sqs import SQSQueue
    from holdfast.adapters.local.filesystem import FilesystemQueue
    from holdfast.adapters.local.filesystem import FilesystemQueue as LocalFileQueue
    from holdfast.bootstrap import open_queue
    from holdfast.core.backoff import Backoff
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
        Unsupported,
    )
    from holdfast.core.events import Events
    from holdfast.core.lease.keeper import LeaseKeeper
    from holdfast.core.lease.lease import Lease, LeaseState
    from holdfast.core.queue.manager import MessageInfo, MessageState, QueueManager, QueueStats
    from holdfast.core.queue.message import AnyMessage, QueueMessage
    from holdfast.core.worker.context import Context
    from holdfast.core.worker.outcome import Done, GiveBack, Reject, Retry
    from holdfast.core.worker.worker import Worker, WorkerReport

# Where each public name lives. They are imported on first use, so that the command line
# starts at once and a test run that only loads the pytest plugin pays nothing.
_HOME = {
    "adapters.aws.heartbeat": ["SQSHeartbeat"],
    "adapters.aws.sqs": ["SQSQueue"],
    "adapters.local.filesystem": ["FilesystemQueue"],
    "bootstrap": ["open_queue"],
    "core.worker.context": ["Context"],
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
        "Unsupported",
    ],
    "core.events": ["Events"],
    "core.lease.keeper": ["LeaseKeeper"],
    "core.lease.lease": ["Lease", "LeaseState"],
    "core.queue.message": ["AnyMessage", "QueueMessage"],
    "core.worker.outcome": ["Done", "GiveBack", "Reject", "Retry"],
    "core.backoff": ["Backoff"],
    "core.queue.manager": ["MessageInfo", "MessageState", "QueueManager", "QueueStats"],
    "core.worker.worker": ["Worker", "WorkerReport"],
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

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
    "LeaseState",
    "LocalFileQueue",
    "MalformedMessage",
    "MessageInfo",
    "MessageState",
    "MessageTooLarge",
    "NewerSchema",
    "NotLeased",
    "QueueManager",
    "QueueMessage",
    "QueueStats",
    "QueueUnavailable",
    "Reject",
    "Retry",
    "SQSHeartbeat",
    "SQSQueue",
    "Unsupported",
    "Worker",
    "WorkerReport",
    "open_queue",
]


def __getattr__(name: str) -> Any:
    wanted = "FilesystemQueue" if name == "LocalFileQueue" else name  # the seed's other name
    if wanted not in _MODULE:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_MODULE[wanted]}"), wanted)
