"""Holdfast keeps long-running queue work alive until it is done, and counts it exactly once."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast as Holdfast
    from holdfast.aws.heartbeat import SQSHeartbeat as SQSHeartbeat
    from holdfast.chat.building import open_conversations as open_conversations
    from holdfast.errors import AttemptFailed as AttemptFailed
    from holdfast.errors import ConfigError as ConfigError
    from holdfast.errors import HandlerNotFound as HandlerNotFound
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import InvalidName as InvalidName
    from holdfast.errors import LeaseLost as LeaseLost
    from holdfast.errors import MalformedMessage as MalformedMessage
    from holdfast.errors import MessageTooLarge as MessageTooLarge
    from holdfast.errors import NewerSchema as NewerSchema
    from holdfast.errors import NotLeased as NotLeased
    from holdfast.errors import QueueUnavailable as QueueUnavailable
    from holdfast.errors import StoreUnavailable as StoreUnavailable
    from holdfast.errors import Unsupported as Unsupported
    from holdfast.events import Events as Events
    from holdfast.exports.building import open_jobs as open_jobs
    from holdfast.lease.backoff import Backoff as Backoff
    from holdfast.lease.keeper import LeaseKeeper as LeaseKeeper
    from holdfast.lease.lease import Lease as Lease
    from holdfast.lease.lease import LeaseSource as LeaseSource
    from holdfast.lease.lease import LeaseState as LeaseState
    from holdfast.lease.lease import Refused as Refused
    from holdfast.lease.lease import Renewed as Renewed
    from holdfast.lease.lease import Unanswered as Unanswered
    from holdfast.queue.admission import Delivery as Delivery
    from holdfast.queue.aio import AsyncQueue as AsyncQueue
    from holdfast.queue.manager import MessageInfo as MessageInfo
    from holdfast.queue.manager import MessageState as MessageState
    from holdfast.queue.manager import QueueManager as QueueManager
    from holdfast.queue.manager import QueueStats as QueueStats
    from holdfast.queue.message import AnyMessage as AnyMessage
    from holdfast.queue.message import EnrichmentMessage as EnrichmentMessage
    from holdfast.queue.message import Message as Message
    from holdfast.queue.message import MessageCodec as MessageCodec
    from holdfast.queue.message import QueueMessage as QueueMessage
    from holdfast.queue.message import attach_lease as attach_lease
    from holdfast.queue.operator import QueueOperator as QueueOperator
    from holdfast.queues.files import FilesystemQueue as FilesystemQueue
    from holdfast.queues.files import LocalFileQueue as LocalFileQueue
    from holdfast.queues.opening import open_queue as open_queue
    from holdfast.queues.sqlite.queue import SQLiteQueue as SQLiteQueue
    from holdfast.queues.sqs import SQSQueue as SQSQueue
    from holdfast.worker.context import Context as Context
    from holdfast.worker.outcome import Done as Done
    from holdfast.worker.outcome import GiveBack as GiveBack
    from holdfast.worker.outcome import Reject as Reject
    from holdfast.worker.outcome import Retry as Retry
    from holdfast.worker.settle import WorkerReport as WorkerReport
    from holdfast.worker.worker import Worker as Worker

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
        "queue.manager": "MessageInfo MessageState QueueManager QueueStats",
        "queue.message": "AnyMessage EnrichmentMessage Message MessageCodec QueueMessage "
        "attach_lease",
        "queue.operator": "QueueOperator",
        "worker.context": "Context",
        "worker.outcome": "Done GiveBack Reject Retry",
        "worker.settle": "WorkerReport",
        "worker.worker": "Worker",
    },
)
