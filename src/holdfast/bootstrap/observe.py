"""What watches: log lines and metrics."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from holdfast.core.events import Subscriber

if TYPE_CHECKING:
    from holdfast.adapters.observe.metrics import MetricsServer as MetricsServer


def log_events(
    write_line: Callable[[str], None],
    style: Literal["text", "json"] = "text",
    *,
    at_least: str = "info",
) -> Subscriber:
    """A subscriber that makes one line of each event."""
    import logging

    from holdfast.adapters.observe.logging import line_log

    level = logging.getLevelNamesMapping()[at_least.upper()]
    return line_log(write_line, style, at_least=level)


def application_log() -> Subscriber:
    """A subscriber that hands each event to the application's own logging."""
    from holdfast.adapters.observe.logging import EventLog

    return EventLog()


def serve_metrics(port: int, host: str = "127.0.0.1") -> "MetricsServer":
    """Prometheus metrics at http://host:port/metrics; subscribe its `subscriber`."""
    from holdfast.adapters.observe.metrics import MetricsServer

    return MetricsServer(port, host)
