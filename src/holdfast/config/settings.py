"""Settings: from the environment, a queue's URL, or the caller; checked whole and early."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from holdfast.config.chat import ChatSettings as ChatSettings
from holdfast.config.chat import chat_settings as chat_settings
from holdfast.core.checks import CheckLevel, CheckResult
from holdfast.core.errors import ConfigError
from holdfast.jobs.heartbeats.interval import MIN_INTERVAL_MS, check_interval

ENV_PREFIX = "HOLDFAST_"


class QueueSettings(BaseModel):
    """What a queue can be told. Each is also HOLDFAST_<NAME> and ?name= in a queue's URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lease_seconds: float = Field(default=60.0, gt=0, le=43_200)
    max_attempts: int = Field(default=5, ge=1, le=1000)
    durability: Literal["process", "power"] = "process"
    dedupe: bool = False
    access: Literal["private", "group"] = "private"
    data_dir: str = Field(default="data", min_length=1)


class SqsSettings(QueueSettings):
    """What only an SQS queue can be told."""

    on_nack: Literal["backoff", "now", "leave"] = "backoff"
    group_by: str | None = Field(default=None, min_length=1)
    dead_letters: str | None = Field(default=None, min_length=1)


S = TypeVar("S", bound=QueueSettings)


def queue_settings(
    env: Mapping[str, str],
    query: Mapping[str, str],
    given: Mapping[str, Any],
    kind: type[S],
) -> S:
    """What is given wins over the URL, the URL over the environment.

    Raises ConfigError with every problem, each by the name the user wrote.
    """
    return _read(kind, env, query, given, {})


T = TypeVar("T", bound=BaseModel)


def _read(
    kind: type[T],
    env: Mapping[str, str],
    query: Mapping[str, str],
    given: Mapping[str, Any],
    variables: Mapping[str, str],
) -> T:
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name in kind.model_fields:
        variable = variables.get(name, ENV_PREFIX + name.upper())
        if variable in env:
            values[name], said[name] = env[variable], variable
    for name, value in query.items():
        values[name], said[name] = value, f"?{name}= in the queue's URL"
    for name, value in given.items():
        values[name], said[name] = value, name
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError(_problems(error, said, kind)) from None


def _problems(error: ValidationError, said: Mapping[str, str], kind: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            known = ", ".join(kind.model_fields)
            lines.append(f"{said.get(name, name)} is no setting of a queue; there are {known}")
        else:
            lines.append(f"{said.get(name, name)}={problem['input']!r}: {problem['msg']}")
    return "; ".join(lines)


# -- exports


def _split(value: object) -> object:
    """Several in one variable, with commas between."""
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


class ExportSettings(BaseModel):
    """How a process exports files. Each is also HOLDFAST_<NAME>; WORKER_POOL_SIZE as the
    seed has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_pool_size: int = Field(default=4, ge=1, le=64)
    downloads: int = Field(default=4, ge=1, le=64)  # at a time in each worker
    per_host: int = Field(default=16, ge=1, le=1024)  # connections to one host, in all
    task_attempts: int = Field(default=3, ge=1, le=100)  # workers that may die of a task
    task_seconds: float = Field(default=6 * 3600.0, gt=0)
    download_attempts: int = Field(default=5, ge=1, le=100)
    quiet_seconds: float = Field(default=60.0, gt=0)  # without a byte, then it is tried again
    max_bytes: int | None = Field(default=None, ge=1)  # of one file
    allow_private: bool = False
    allow_hosts: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    durable: bool = False
    drain_seconds: float = Field(default=30.0, ge=0)
    data_dir: str = Field(default="data", min_length=1)


def export_settings(env: Mapping[str, str], given: Mapping[str, Any]) -> ExportSettings:
    """What is given wins over the environment. Raises ConfigError with every problem."""
    seeds = {"worker_pool_size": "WORKER_POOL_SIZE"}
    return _read(ExportSettings, env, {}, given, seeds)


# -- heartbeats of jobs


_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def _strict_bool(value: object) -> bool:
    """One reading for every layer; anything else is a mistake, not a yes or a no."""
    if isinstance(value, bool):
        return value
    if (found := _WORDS.get(str(value).strip().lower())) is None:
        raise ValueError("use one of true, false, 1, 0, yes, no, on, off")
    return found


def _whole_number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise ValueError("use a whole number, without a unit")
    return int(text)


def _or_never(value: object) -> object:
    return None if str(value).strip().lower() == "never" else value


class HeartbeatSettings(BaseModel):
    """How Step Functions is kept waiting. Each comes from the variable that is its alias."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interval_ms: Annotated[int, BeforeValidator(_whole_number)] = Field(
        default=30_000, ge=MIN_INTERVAL_MS, alias="STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS"
    )
    enabled: Annotated[bool, BeforeValidator(_strict_bool)] = Field(
        default=True, alias="STEP_FUNCTIONS_HEARTBEAT_ENABLED"
    )
    heartbeat_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        alias="STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS",
    )
    stall_seconds: Annotated[float | None, BeforeValidator(_or_never)] = Field(
        default=3600.0, gt=0, allow_inf_nan=False, alias="HOLDFAST_STALL_SECONDS"
    )

    @property
    def interval_seconds(self) -> float:
        return self.interval_ms / 1000

    @model_validator(mode="after")
    def _in_time(self) -> Self:
        finding = self.finding()
        if finding is not None and finding.level is CheckLevel.FAIL:
            raise ValueError(
                "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS does not fit "
                "STEP_FUNCTIONS_HEARTBEAT_TIMEOUT_SECONDS "
                f"({finding.found}): {finding.remedy}"
            )
        return self

    def finding(self) -> CheckResult | None:
        """What doctor says of interval and HeartbeatSeconds; None when that is not known."""
        if (timeout := self.heartbeat_timeout_seconds) is None:
            return None
        return check_interval(self.interval_seconds, timeout)


def heartbeat_settings(env: Mapping[str, str]) -> HeartbeatSettings:
    """From the environment. Raises ConfigError with every problem, by its variable."""
    names = [str(field.alias) for field in HeartbeatSettings.model_fields.values()]
    try:
        said = {name: env[name] for name in names if name in env}
        return HeartbeatSettings.model_validate(said)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise ConfigError("; ".join(map(_heartbeat_problem, problems))) from None


def _heartbeat_problem(problem: Any) -> str:
    text = problem["msg"].removeprefix("Value error, ")
    return f"{problem['loc'][0]}={problem['input']!r}: {text}" if problem["loc"] else text
