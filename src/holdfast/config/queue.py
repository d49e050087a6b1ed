"""Settings of queues, from the environment, a queue's URL or the caller."""

from typing import Literal

from pydantic import Field

from holdfast.config.reading import Settings


class QueueSettings(Settings):
    """The settings of any queue. Each is also HOLDFAST_<NAME> and ?name= in a queue's URL."""

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
