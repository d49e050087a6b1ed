"""Settings of queues, from the environment, a queue's URL or the caller."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from holdfast.config.reading import read_settings


class QueueSettings(BaseModel):
    """The settings of any queue. Each is also HOLDFAST_<NAME> and ?name= in a queue's URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lease_seconds: float = Field(default=60.0, gt=0, le=43_200)
    max_attempts: int = Field(default=5, ge=1, le=1000)
    durability: Literal["process", "power"] = "process"
    dedupe: bool = False
    access: Literal["private", "group"] = "private"
    data_dir: str = Field(default="data", min_length=1)


class SqsSettings(QueueSettings):
    """The settings of an SQS queue, some of which no other queue has."""

    on_nack: Literal["backoff", "now", "leave"] = "backoff"
    group_by: str | None = Field(default=None, min_length=1)
    dead_letters: str | None = Field(default=None, min_length=1)


S = TypeVar("S", bound=QueueSettings)


def read_queue_settings(
    env: Mapping[str, str],
    query: Mapping[str, str],
    given: Mapping[str, Any],
    kind: type[S],
) -> S:
    """Return a queue's settings: `given` wins over the URL's query, the query over `env`.

    Raises ConfigError with every problem, each with the name that the user wrote.
    """
    return read_settings(kind, env, query=query, given=given, variables={})
