"""Settings of metrics and traces, from the environment."""

from typing import Literal

from pydantic import Field

from holdfast.config.reading import Settings

Otel = Literal["off", "links", "parent"]


class TelemetrySettings(Settings):
    """What Lambda functions and the commands that work report, besides logs."""

    emf_namespace: str | None = Field(default=None, min_length=1)
    otel: Otel = "off"
