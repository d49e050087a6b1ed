"""The composition root, which is the only package that chooses adapters."""

from typing import TYPE_CHECKING

from holdfast.bootstrap.observe import log_events, serve_metrics
from holdfast.bootstrap.queues import (
    examine_queue,
    make_queue_opener,
    open_queue,
    parse_queue_address,
)

if TYPE_CHECKING:
    from holdfast.bootstrap.queues import SQSQueue as SQSQueue

__all__ = [
    "examine_queue",
    "log_events",
    "make_queue_opener",
    "open_queue",
    "parse_queue_address",
    "serve_metrics",
]
