"""What several commands take: the queue, `--json`, durations."""

import os
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.durations import seconds
from holdfast.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.queue.manager import QueueManager
    from holdfast.core.queue.message import AnyMessage

QUEUE_VARIABLE = "HOLDFAST_QUEUE"
QUEUE_HELP = (
    "The queue: a name (enrich, acme/enrich), a path (./work/acme/enrich) or a URL "
    "(file:/srv/work/acme/enrich, sqs:enrich, https://sqs…/enrich). May be left out when "
    f"{QUEUE_VARIABLE} is set."
)

MAX_COUNT = 1_000_000_000  # far more than is shown, and a number that every store can take

AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON, for scripts.")]
Duration = Annotated[float, typer.Option(parser=seconds, metavar="DURATION")]
Queue = Annotated[str | None, typer.Argument(metavar="QUEUE", help=QUEUE_HELP)]
Limit = Annotated[int, typer.Option(min=0, max=MAX_COUNT, help="At most this many; 0 for all.")]


def concurrency_option(text: str) -> Any:
    """Return the option for things done at a time. Each has a thread or a process, so a number
    without a limit would use up the machine before anything is done."""
    return typer.Option("--concurrency", "-c", min=1, max=1024, help=text)


def queue_and_rest(words: Sequence[str] | None, wanted: int) -> tuple[str, list[str]]:
    """The queue and what follows it, when at least `wanted` words must follow.

    Only a word too many names the queue: so a command never works on the variable's queue
    while the person meant another.
    """
    given = list(words or ())
    if len(given) > wanted:
        return given[0], given[1:]
    return default_queue(), given


def default_queue(given: str | None = None) -> str:
    if queue := given or os.environ.get(QUEUE_VARIABLE, ""):
        return queue
    raise UsageError(
        f"which queue? Name it first, as in `holdfast status enrich`, or set {QUEUE_VARIABLE}"
    )


@contextmanager
def opened(
    queue: str | None, *, create: bool = False, **given: Any
) -> "Iterator[QueueManager[AnyMessage]]":
    """The queue, closed afterwards. Looking at a queue that is not there makes none."""
    from holdfast.bootstrap import open_queue

    with open_queue(default_queue(queue), create=create, **given) as manager:
        yield manager


def is_service(manager: "QueueManager[AnyMessage]") -> bool:
    """Somebody else's server, reached by calls: SQS. It cannot be searched."""
    return "find" not in manager.capabilities


def all_if_zero(limit: int) -> int:
    return limit or 2**62
