"""Arguments and options that several commands share: the queue, `--json`, durations."""

import os
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.errors import UsageError
from holdfast.cli.formatting import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.queue.manager import QueueManager
    from holdfast.core.queue.message import AnyMessage

QUEUE_VARIABLE = "HOLDFAST_QUEUE"
QUEUE_HELP = (
    "The queue: a name (enrich, acme/enrich), a path (./work/acme/enrich) or a URL "
    "(file:/srv/work/acme/enrich, sqs:enrich, https://sqs…/enrich). Optional if "
    f"{QUEUE_VARIABLE} is set."
)

MAX_COUNT = 1_000_000_000  # far more than is ever shown, and every store accepts it

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Queue = Annotated[str | None, typer.Argument(metavar="QUEUE", help=QUEUE_HELP)]
Limit = Annotated[
    int, typer.Option(min=0, max=MAX_COUNT, help="Show at most this many; 0 for all.")
]


def make_duration_option(text: str, **more: Any) -> Any:
    """Return an option for a duration."""
    return typer.Option(parser=parse_duration, metavar="DURATION", help=text, **more)


def make_concurrency_option(text: str) -> Any:
    """Return the --concurrency option.

    Each unit has a thread or a process, so a number without a limit would use up the machine
    before any work is done.
    """
    return typer.Option("--concurrency", "-c", min=1, max=1024, help=text)


def split_queue_and_rest(words: Sequence[str] | None, min_rest: int) -> tuple[str, list[str]]:
    """Return the queue and the words after it, of which there must be at least `min_rest`.

    The first word names the queue only if more than `min_rest` words are given. So a command
    never works on the variable's queue while the user meant another.
    """
    given = list(words or ())
    if len(given) > min_rest:
        return given[0], given[1:]
    return resolve_queue(), given


def resolve_queue(given: str | None = None) -> str:
    """Return the given queue, or else the variable's. Raises UsageError if there is none."""
    if queue := given or os.environ.get(QUEUE_VARIABLE, ""):
        return queue
    raise UsageError(
        "no queue is given: name it first, as in `holdfast status enrich`, "
        f"or set {QUEUE_VARIABLE}"
    )


@contextmanager
def open_manager(
    queue: str | None, *, create: bool = False, **given: Any
) -> "Iterator[QueueManager[AnyMessage]]":
    """Open the queue and close it afterwards. Read-only commands never create a queue."""
    from holdfast.bootstrap import open_queue

    with open_queue(resolve_queue(queue), create=create, **given) as manager:
        yield manager


def is_service(manager: "QueueManager[AnyMessage]") -> bool:
    """Return whether the queue is a remote service (SQS), which cannot be searched."""
    return "find" not in manager.capabilities


def to_limit(limit: int) -> int:
    """Return the limit, or a number above every queue's length for 0."""
    return limit or 2**62
