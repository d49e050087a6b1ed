"""Settings of the heartbeats that jobs send to Step Functions, from the environment."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from holdfast.doctor.checks import CheckLevel, CheckResult
from holdfast.exports.heartbeats.interval import (
    MIN_INTERVAL_MS,
    RETRY_GRACE_SECONDS,
    check_interval,
)
from holdfast.settings import Settings, read_settings

_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def _parse_bool(value: object) -> bool:
    """Parse a switch. Any other word is a mistake, and is not taken for a yes or a no."""
    if isinstance(value, bool):
        return value
    if (parsed := _BOOLEANS.get(str(value).strip().lower())) is None:
        raise ValueError("use one of true, false, 1, 0, yes, no, on, off")
    return parsed


def _parse_whole_number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise ValueError("use a whole number, without a unit")
    return int(text)


def _parse_never(value: object) -> object:
    return None if str(value).strip().lower() == "never" else value


class HeartbeatSettings(Settings):
    """The settings of heartbeats. Their variables' names come from the seed."""

    variables: ClassVar = {
        "interval_ms": "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS",
        "enabled": "STEP_FUNCTIONS_HEARTBEAT_ENABLED",
        "heartbeat_timeout_seconds": "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS",
    }

    #: milliseconds between two heartbeats of a job; at least 1000
    interval_ms: Annotated[int, BeforeValidator(_parse_whole_number)] = Field(
        default=30_000, ge=MIN_INTERVAL_MS
    )
    #: `false` switches heartbeats off; allowed values are true, false, 1, 0, yes, no, on, off
    enabled: Annotated[bool, BeforeValidator(_parse_bool)] = True
    #: the state's HeartbeatSeconds; refused below twice the interval, a warning below three
    #: times
    heartbeat_timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: seconds without progress after which a job fails and gets no more heartbeats; `never`
    #: switches this off
    stall_seconds: Annotated[float | None, BeforeValidator(_parse_never)] = Field(
        default=3600.0, gt=0, allow_inf_nan=False
    )
    #: seconds for which a job whose token was closed waits for the token of the state's Retry,
    #: then it fails
    retry_grace_seconds: float = Field(default=RETRY_GRACE_SECONDS, ge=0, allow_inf_nan=False)

    @property
    def interval_seconds(self) -> float:
        """Return the interval in seconds."""
        return self.interval_ms / 1000

    def find_contradictions(self) -> Iterator[str]:
        """Yield the problem of an interval that does not fit HeartbeatSeconds."""
        result = self.check_timeout()
        if result is not None and result.level is CheckLevel.FAIL:
            yield (
                "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS does not fit "
                "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS "
                f"({result.found}): {result.remedy}"
            )

    def check_timeout(self) -> CheckResult | None:
        """Check the interval against HeartbeatSeconds; None if HeartbeatSeconds is unknown."""
        if (timeout := self.heartbeat_timeout_seconds) is None:
            return None
        return check_interval(self.interval_seconds, timeout)


def read_heartbeat_settings(env: Mapping[str, str]) -> HeartbeatSettings:
    """Return the settings of heartbeats from the environment.

    Raises ConfigError with every problem, each with its variable.
    """
    return read_settings(HeartbeatSettings, env)
