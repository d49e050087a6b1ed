"""Metrics and traces, as the environment asks for them."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field

from holdfast.events import Subscriber
from holdfast.queue.manager import QueueManager
from holdfast.settings import Settings, read_settings

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
        from holdfast.telemetry.otel_metrics import OpenTelemetryMetrics
        from holdfast.telemetry.tracing import OpenTelemetryTracing

        subscribers += [OpenTelemetryMetrics(), OpenTelemetryTracing()]
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
        from holdfast.telemetry.tracing import OpenTelemetryTracing

        OpenTelemetryTracing(parent=settings.otel == "parent").trace_queue(queue)
    return queue
