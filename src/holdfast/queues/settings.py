"""Settings of queues, from the environment, a queue's URL or the caller."""

from typing import Annotated, Literal, TypedDict

from pydantic import BeforeValidator, Field

from holdfast.lease.backoff import Backoff
from holdfast.settings import Settings

Durability = Literal["process", "power"]
Access = Literal["private", "group"]
OnNack = Literal["backoff", "now", "leave"]


def _parse_backoff(value: object) -> object:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str):
        return Backoff.parse(value)
    raise ValueError("write it as '5s,x2,max 10m', or pass a Backoff")


class QueueSettings(Settings):
    """The settings of any queue. Each is also HOLDFAST_<NAME> and ?name= in a queue's URL."""

    lease_seconds: float = Field(default=60.0, gt=0, le=43_200)
    max_attempts: int = Field(default=5, ge=1, le=1000)
    backoff: Annotated[Backoff, BeforeValidator(_parse_backoff)] = Backoff()
    durability: Durability = "process"
    dedupe: bool = False
    access: Access = "private"
    data_dir: str = Field(default="data", min_length=1)


class SqsSettings(QueueSettings):
    """The settings of an SQS queue, some of which no other queue has."""

    on_nack: OnNack = "backoff"
    group_by: str | None = Field(default=None, min_length=1)
    dead_letters: str | None = Field(default=None, min_length=1)


class QueueOptions(TypedDict, total=False):
    """The settings as keywords of `open_queue`, for type checkers."""

    lease_seconds: float
    max_attempts: int
    backoff: Backoff | str
    durability: Durability
    dedupe: bool
    access: Access
    data_dir: str
    on_nack: OnNack
    group_by: str | None
    dead_letters: str | None
