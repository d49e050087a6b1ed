"""The composition root, which is the only package that chooses adapters."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from holdfast._lazy import lazy_exports
from holdfast.core.events import Subscriber

if TYPE_CHECKING:
    from holdfast.adapters.observe.metrics import MetricsServer as MetricsServer
    from holdfast.bootstrap.queues import SQSQueue as SQSQueue
    from holdfast.bootstrap.queues import examine_queue as examine_queue
    from holdfast.bootstrap.queues import make_queue_opener as make_queue_opener
    from holdfast.bootstrap.queues import open_queue as open_queue
    from holdfast.bootstrap.queues import parse_queue_address as parse_queue_address

# An export needs none of these, and they import all that a queue needs.
_queues = "examine_queue make_queue_opener open_queue parse_queue_address"
_lazy_names, __getattr__ = lazy_exports(__name__, {"bootstrap.queues": _queues})
__all__ = [*_lazy_names, "log_events", "make_application_log", "serve_metrics"]


def log_events(
    write_line: Callable[[str], None],
    style: Literal["text", "json", "plain"] = "text",
    *,
    min_level: str = "info",
    tracebacks: bool = False,
    explain: str | None = None,
) -> Subscriber:
    """Return a subscriber that writes one line for each event of at least this level.

    `tracebacks` and `explain` are those of `make_line_log`.
    """
    import logging

    from holdfast.adapters.observe.logging import make_line_log

    level = logging.getLevelNamesMapping()[min_level.upper()]
    return make_line_log(
        write_line, style, min_level=level, tracebacks=tracebacks, explain=explain
    )


def make_application_log(*, tracebacks: bool = True) -> Subscriber:
    """Return a subscriber that passes each event to the application's own logging."""
    from holdfast.adapters.observe import logging

    return logging.make_application_log(tracebacks=tracebacks)


def serve_metrics(port: int, host: str = "127.0.0.1") -> "MetricsServer":
    """Serve Prometheus metrics at http://host:port/metrics until the server is closed.

    The caller must subscribe the server's `subscriber` to its events.
    """
    from holdfast.adapters.observe.metrics import MetricsServer

    return MetricsServer(port, host)
