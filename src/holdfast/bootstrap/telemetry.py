"""Metrics as the environment asks for them."""

from collections.abc import Mapping

from holdfast.config.reading import read_settings
from holdfast.config.telemetry import TelemetrySettings
from holdfast.core.events import Subscriber


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

        subscribers.append(OpenTelemetryMetrics())
    return subscribers
