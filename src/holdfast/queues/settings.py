"""Settings of queues and of the clients of AWS, from the environment, a URL or the caller."""

from typing import Annotated, Literal, TypedDict

from pydantic import BeforeValidator, Field

from holdfast.lease.backoff import Backoff
from holdfast.settings import Settings

Durability = Literal["process", "power"]
Access = Literal["private", "group"]
AwsClient = Literal["auto", "boto3"]
OnNack = Literal["backoff", "now", "leave"]


def _parse_backoff(value: object) -> object:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str):
        return Backoff.parse(value)
    raise ValueError("write it as '5s,x2,max 10m', or pass a Backoff")


class QueueSettings(Settings):
    """The settings of any queue. Each is also HOLDFAST_<NAME> and ?name= in a queue's URL."""

    #: seconds that a lease lasts unless it is renewed, so the longest wait after a crash
    lease_seconds: float = Field(default=60.0, gt=0, le=43_200)
    #: attempts before a message is dead-lettered
    max_attempts: int = Field(default=5, ge=1, le=1000)
    #: delay before a failed attempt is repeated: the first delay, the factor of each further
    #: one, and the maximum
    backoff: Annotated[Backoff, BeforeValidator(_parse_backoff)] = Backoff()
    #: what a push survives: `process` (kill -9) or `power` (a power cut)
    durability: Durability = "process"
    #: do not push an id that is waiting, held or done
    dedupe: bool = False
    #: who may use a queue on files or SQLite that is created now: its owner (`private`), or a
    #: `group` ([how](../how-to/shared-folders.md#who-may-read-it)); an existing queue keeps the
    #: mode of its folder or database
    access: Access = "private"
    #: the folder of queues with short names; a `sqlite:` path is relative to the working
    #: directory
    data_dir: str = Field(default="data", min_length=1)


class SqsSettings(QueueSettings):
    """The settings of an SQS queue, some of which no other queue has."""

    #: when a failed message is visible again: after the `backoff`, `now`, or when its lease has
    #: expired (`leave`)
    on_nack: OnNack = "backoff"
    #: FIFO queues: the field whose value is the message group; without it all messages are one
    #: group
    group_by: str | None = Field(default=None, min_length=1)
    #: name or URL of the dead-letter queue; without it that of the redrive policy, else
    #: `<name>-dead`
    dead_letters: str | None = Field(default=None, min_length=1)


class AwsSettings(Settings):
    """How SQS, DynamoDB and Step Functions are called.

    The adapters read the variable when they make a client, because libraries use them without
    reading settings.
    """

    #: what calls them: Holdfast's own client, and boto3 where calls are mocked or traced
    #: (`auto`, [the rule](../how-to/run-on-sqs.md#which-client-calls-aws)); always `boto3`
    aws_client: AwsClient = "auto"


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
