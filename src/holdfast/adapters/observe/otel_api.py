"""The API of OpenTelemetry, or one line that says what to install."""

from holdfast.core.errors import ConfigError

try:
    from opentelemetry import context as context
    from opentelemetry import metrics as metrics
    from opentelemetry import trace as trace
    from opentelemetry.trace.propagation.tracecontext import (
        TraceContextTextMapPropagator as TraceContextTextMapPropagator,
    )
except ImportError:
    raise ConfigError(
        "OpenTelemetry needs opentelemetry-api, which is not installed: "
        "pip install 'holdfast[otel]'"
    ) from None
