"""Holdfast keeps long-running queue work alive until it is done, and counts it exactly once."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.aws.heartbeat import SQSHeartbeat as SQSHeartbeat
    from holdfast.adapters.aws.sqs import SQSQueue as SQSQueue
    from holdfast.adapters.local.filesystem import FilesystemQueue as FilesystemQueue
    from holdfast.adapters.local.filesystem import LocalFileQueue as LocalFileQueue
    from holdfast.adapters.local.sqlite import SQLiteQueue as SQLiteQueue
    from holdfast.app.application import Holdfast as Holdfast
    from holdfast.bootstrap import open_queue as open_queue
    from holdfast.bootstrap.chats import open_conversations as open_conversations
    from holdfast.bootstrap.exports import open_jobs as open_jobs
    from holdfast.core.backoff import Backoff as Backoff
    from holdfast.core.errors import AttemptFailed as AttemptFailed
    from holdfast.core.errors import ConfigError as ConfigError
    from holdfast.core.errors import HandlerNotFound as HandlerNotFound
    from holdfast.core.errors import HoldfastError as HoldfastError
    from holdfast.core.errors import InvalidName as InvalidName
    from holdfast.core.errors import LeaseLost as LeaseLost
    from holdfast.core.errors import MalformedMessage as MalformedMessage
    from holdfast.core.errors import MessageTooLarge as MessageTooLarge
    from holdfast.core.errors import NewerSchema as NewerSchema
    from holdfast.core.errors import NotLeased as NotLeased
    from holdfast.core.errors import QueueUnavailable as QueueUnavailable
    from holdfast.core.errors import StoreUnavailable as StoreUnavailable
    from holdfast.core.errors import Unsupported as Unsupported
    from holdfast.core.events import Events as Events
    from holdfast.core.lease.keeper import LeaseKeeper as LeaseKeeper
    from holdfast.core.lease.lease import Lease as Lease
    from holdfast.core.lease.lease import LeaseSource as LeaseSource
    from holdfast.core.lease.lease import LeaseState as LeaseState
    from holdfast.core.lease.lease import Refused as Refused
    from holdfast.core.lease.lease import Renewed as Renewed
    from holdfast.core.lease.lease import Unanswered as Unanswered
    from holdfast.core.queue.aio import AsyncQueue as AsyncQueue
    from holdfast.core.queue.enrichment import EnrichmentMessage as EnrichmentMessage
    from holdfast.core.queue.manager import MessageInfo as MessageInfo
    from holdfast.core.queue.manager import MessageState as MessageState
    from holdfast.core.queue.manager import QueueManager as QueueManager
    from holdfast.core.queue.manager import QueueStats as QueueStats
    from holdfast.core.queue.message import AnyMessage as AnyMessage
    from holdfast.core.queue.message import Message as Message
    from holdfast.core.queue.message import MessageCodec as MessageCodec
    from holdfast.core.queue.message import QueueMessage as QueueMessage
    from holdfast.core.queue.message import attach_lease as attach_lease
    from holdfast.core.worker.context import Context as Context
    from holdfast.core.worker.outcome import Done as Done
    from holdfast.core.worker.outcome import GiveBack as GiveBack
    from holdfast.core.worker.outcome import Reject as Reject
    from holdfast.core.worker.outcome import Retry as Retry
    from holdfast.core.worker.settle import WorkerReport as WorkerReport
    from holdfast.core.worker.worker import Worker as Worker

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "adapters.aws.heartbeat": "SQSHeartbeat",
        "adapters.aws.sqs": "SQSQueue",
        "adapters.local.filesystem": "FilesystemQueue LocalFileQueue",
        "adapters.local.sqlite": "SQLiteQueue",
        "app.application": "Holdfast",
        "bootstrap": "open_queue",
        "bootstrap.chats": "open_conversations",
        "bootstrap.exports": "open_jobs",
        "core.backoff": "Backoff",
        "core.errors": "AttemptFailed ConfigError HandlerNotFound HoldfastError InvalidName "
        "LeaseLost MalformedMessage MessageTooLarge NewerSchema NotLeased QueueUnavailable "
        "StoreUnavailable Unsupported",
        "core.events": "Events",
        "core.lease.keeper": "LeaseKeeper",
        "core.lease.lease": "Lease LeaseSource LeaseState Refused Renewed Unanswered",
        "core.queue.aio": "AsyncQueue",
        "core.queue.enrichment": "EnrichmentMessage",
        "core.queue.manager": "MessageInfo MessageState QueueManager QueueStats",
        "core.queue.message": "AnyMessage Message MessageCodec QueueMessage attach_lease",
        "core.worker.context": "Context",
        "core.worker.outcome": "Done GiveBack Reject Retry",
        "core.worker.settle": "WorkerReport",
        "core.worker.worker": "Worker",
    },
)
