"""Metrics, traces and the protection of ECS tasks, as the environment asks for them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.config.reading import read_settings
from holdfast.config.telemetry import TelemetrySettings
from holdfast.core.events import Events, Subscriber
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


@contextmanager
def protect_task(events: Events, env: Mapping[str, str]) -> Iterator[None]:
    """Protect the ECS task of this process while messages are held, until the block is left.

    Does nothing outside ECS, whose agent sets ECS_AGENT_URI. Raises ConfigError.
    """
    if not (agent_uri := env.get("ECS_AGENT_URI")):
        yield
        return
    from holdfast.adapters.aws.task_protection import TaskProtection

    with TaskProtection(agent_uri) as protection:
        events.subscribe(protection)
        yield
