"""Settings: from the environment, a queue's URL, or the caller; checked whole and early."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.core.errors import ConfigError

ENV_PREFIX = "HOLDFAST_"


class QueueSettings(BaseModel):
    """What a queue can be told. Each is also HOLDFAST_<NAME> and ?name= in a queue's URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lease_seconds: float = Field(default=60.0, gt=0, le=43_200)
    max_attempts: int = Field(default=5, ge=1, le=1000)
    durability: Literal["process", "power"] = "process"
    dedupe: bool = False
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
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name in kind.model_fields:
        variable = ENV_PREFIX + name.upper()
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


def _problems(
    error: ValidationError, said: Mapping[str, str], kind: type[QueueSettings]
) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            known = ", ".join(kind.model_fields)
            lines.append(f"{said.get(name, name)} is no setting of a queue; there are {known}")
        else:
            lines.append(f"{said.get(name, name)}={problem['input']!r}: {problem['msg']}")
    return "; ".join(lines)
