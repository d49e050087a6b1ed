"""The composition root: the only place that names an adapter."""

from typing import TYPE_CHECKING

from holdfast.bootstrap.observe import log_events, serve_metrics
from holdfast.bootstrap.queues import event_source, examine, open_queue, queue_address

if TYPE_CHECKING:
    from holdfast.bootstrap.queues import SQSQueue as SQSQueue

__all__ = [
    "event_source",
    "examine",
    "log_events",
    "open_queue",
    "queue_address",
    "serve_metrics",
]
