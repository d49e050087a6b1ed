"""Settings of the heartbeats that jobs send to Step Functions, from the environment."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from holdfast.core.checks import CheckLevel, CheckResult
from holdfast.core.errors import ConfigError
from holdfast.jobs.heartbeats.interval import MIN_INTERVAL_MS, check_interval

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


class HeartbeatSettings(BaseModel):
    """The settings of heartbeats. Each comes from the variable that is its alias."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interval_ms: Annotated[int, BeforeValidator(_parse_whole_number)] = Field(
        default=30_000, ge=MIN_INTERVAL_MS, alias="STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS"
    )
    enabled: Annotated[bool, BeforeValidator(_parse_bool)] = Field(
        default=True, alias="STEP_FUNCTIONS_HEARTBEAT_ENABLED"
    )
    heartbeat_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        alias="STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS",
    )
    stall_seconds: Annotated[float | None, BeforeValidator(_parse_never)] = Field(
        default=3600.0, gt=0, allow_inf_nan=False, alias="HOLDFAST_STALL_SECONDS"
    )

    @property
    def interval_seconds(self) -> float:
        """Return the interval in seconds."""
        return self.interval_ms / 1000

    @model_validator(mode="after")
    def _require_fitting_interval(self) -> Self:
        result = self.check_timeout()
        if result is not None and result.level is CheckLevel.FAIL:
            raise ValueError(
                "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS does not fit "
                "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS "
                f"({result.found}): {result.remedy}"
            )
        return self

    def check_timeout(self) -> CheckResult | None:
        """Check the interval against HeartbeatSeconds; None if HeartbeatSeconds is unknown."""
        if (timeout := self.heartbeat_timeout_seconds) is None:
            return None
        return check_interval(self.interval_seconds, timeout)


def read_heartbeat_settings(env: Mapping[str, str]) -> HeartbeatSettings:
    """Return the settings of heartbeats from the environment.

    Raises ConfigError with every problem, each with its variable.
    """
    names = [str(field.alias) for field in HeartbeatSettings.model_fields.values()]
    try:
        return HeartbeatSettings.model_validate(
            {name: env[name] for name in names if name in env}
        )
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise ConfigError("; ".join(map(_describe_problem, problems))) from None


def _describe_problem(problem: Any) -> str:
    text = problem["msg"].removeprefix("Value error, ")
    return f"{problem['loc'][0]}={problem['input']!r}: {text}" if problem["loc"] else text
