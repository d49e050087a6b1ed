"""Metrics and traces, as the environment asks for them, and the counts of queues as metrics."""

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import Field

from holdfast.events import Events, QueueMeasured, Subscriber
from holdfast.lease.background import BackgroundLoop
from holdfast.queue.manager import QueueManager
from holdfast.settings import Settings, read_settings

# `stats` may scan the queue. Sampling a huge queue less often costs at most 2 % of a core.
_MIN_PAUSE_PER_SECOND = 50.0

Q = TypeVar("Q", bound=QueueManager[Any])


class TelemetrySettings(Settings):
    """What Lambda functions and the commands that work report, besides logs."""

    #: write metrics to standard output for this namespace of CloudWatch
    emf_namespace: str | None = Field(default=None, min_length=1)
    #: report metrics and traces to the OpenTelemetry providers of the process; an attempt has a
    #: link to the span that created its message (`links`), or is a child of it (`parent`)
    otel: Literal["off", "links", "parent"] = "off"


_OTEL = TelemetrySettings.to_variable("otel")


def make_telemetry(env: Mapping[str, str]) -> list[Subscriber]:
    """Return the subscribers that the environment asks for. Raises ConfigError.

    Call `Events.flush` at the end of an invocation or of the process.
    """
    subscribers: list[Subscriber] = []
    settings = read_settings(TelemetrySettings, env)
    if settings.emf_namespace is not None:
        from holdfast.telemetry.emf import EmfWriter

        subscribers.append(EmfWriter(settings.emf_namespace))
    if settings.otel != "off":
        from holdfast.telemetry.opentelemetry import OpenTelemetryMetrics

        subscribers.append(OpenTelemetryMetrics())
    return subscribers


def has_metrics(env: Mapping[str, str]) -> bool:
    """Return whether the environment asks for metrics. Raises ConfigError."""
    settings = read_settings(TelemetrySettings, env)
    return settings.emf_namespace is not None or settings.otel != "off"


def trace_queue(queue: Q, env: Mapping[str, str]) -> Q:
    """Return the queue, traced if the environment asks for it. Raises ConfigError."""
    if _OTEL not in env:  # most processes trace nothing, and need not read the settings
        return queue
    settings = read_settings(TelemetrySettings, env)
    if settings.otel != "off":
        from holdfast.telemetry.opentelemetry import OpenTelemetryTracing

        OpenTelemetryTracing(parent=settings.otel == "parent").trace_queue(queue)
    return queue


class QueueSampler:
    """Emits QueueMeasured every `interval_seconds`, as a context manager, in one thread.

    One sampler per queue is enough, however many workers it has. A sample that fails is left
    out, because the workers of the queue report that it is unavailable.
    """

    def __init__(
        self,
        queue: QueueManager[Any],
        events: Events | None = None,
        *,
        interval_seconds: float = 15.0,
    ) -> None:
        if not interval_seconds > 0:
            raise ValueError(f"interval_seconds must be above 0, not {interval_seconds}")
        self._queue = queue
        self._events = queue.events if events is None else events
        self._interval_seconds = interval_seconds
        self._loop = BackgroundLoop("holdfast-sampler", self.tick, queue.clock)

    def tick(self) -> float:
        """Emit one sample, and return the monotonic time of the next one."""
        clock = self._queue.clock
        started_at = clock.monotonic()
        try:
            stats = self._queue.stats()
        except Exception:  # whatever a backend raises, work must go on without samples
            return started_at + self._interval_seconds
        now = clock.monotonic()
        self._events.emit(
            QueueMeasured(
                self._queue.name,
                stats.ready,
                stats.delayed,
                stats.leased,
                stats.failed,
                stats.oldest_ready_seconds,
            )
        )
        pause_seconds = (now - started_at) * _MIN_PAUSE_PER_SECOND
        return now + max(self._interval_seconds, pause_seconds)

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
