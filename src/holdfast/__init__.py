"""Holdfast keeps long-running queue work alive until it is done, and counts it exactly once."""

from holdfast.adapters.local.filesystem import FilesystemQueue
from holdfast.bootstrap import open_queue
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
)
from holdfast.core.events import Events
from holdfast.core.lease import Lease, LeaseState
from holdfast.core.message import AnyMessage, QueueMessage
from holdfast.core.outcome import Done, Reject, Retry
from holdfast.core.queue import Backoff, QueueManager, QueueStats, TaskState, TaskView

LocalFileQueue = FilesystemQueue  # the seed's other name for it

__all__ = [
    "AnyMessage",
    "Backoff",
    "ConfigError",
    "Done",
    "Events",
    "FilesystemQueue",
    "HandlerNotFound",
    "HoldfastError",
    "InvalidName",
    "Lease",
    "LeaseLost",
    "LeaseState",
    "LocalFileQueue",
    "MalformedMessage",
    "MessageTooLarge",
    "NewerSchema",
    "NotLeased",
    "QueueManager",
    "QueueMessage",
    "QueueStats",
    "QueueUnavailable",
    "Reject",
    "Retry",
    "TaskState",
    "TaskView",
    "open_queue",
]
