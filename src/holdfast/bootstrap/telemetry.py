"""Metrics and traces as the environment asks for them."""

from collections.abc import Mapping
from typing import Any, TypeVar

from holdfast.config.reading import read_settings
from holdfast.config.telemetry import TelemetrySettings
from holdfast.core.events import Subscriber
from holdfast.core.queue.manager import QueueManager

Q = TypeVar("Q", bound=QueueManager[Any])
_OTEL = TelemetrySettings.to_variable("otel")


def make_telemetry(env: Mapping[str, str]) -> list[Subscriber]:
    """Return the subscribers that the environment asks for. Raises ConfigError.

    Call `Events.flush` at the end of an invocation or of the process.
    """
    subscribers: list[Subscriber] = []
    settings = read_settings(TelemetrySettings, env)
    if settings.emf_namespace is not None:
        from holdfast.adapters.observe.emf import EmfWriter

        subscribers.append(EmfWriter(settings.emf_namespace))
    if settings.otel != "off":
        from holdfast.adapters.observe.otel_metrics import OpenTelemetryMetrics
        from holdfast.adapters.observe.tracing import OpenTelemetryTracing

        subscribers += [OpenTelemetryMetrics(), OpenTelemetryTracing()]
    return subscribers


def trace_queue(queue: Q, env: Mapping[str, str]) -> Q:
    """Return the queue, traced if the environment asks for it. Raises ConfigError."""
    if _OTEL not in env:  # most processes trace nothing, and need not read the settings
        return queue
    settings = read_settings(TelemetrySettings, env)
    if settings.otel != "off":
        from holdfast.adapters.observe.tracing import OpenTelemetryTracing

        OpenTelemetryTracing(parent=settings.otel == "parent").trace_queue(queue)
    return queue
