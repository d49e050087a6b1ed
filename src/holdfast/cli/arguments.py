"""Arguments and options that several commands share: the queue, ids, durations, sizes."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar

import typer

from holdfast import text as text_module
from holdfast.cli.console import UsageError, info
from holdfast.urls import QUEUES, parse_url
from holdfast.variables import QUEUE_VARIABLE, find_misspelt

if TYPE_CHECKING:
    from holdfast.queue.manager import QueueManager
    from holdfast.queue.message import AnyMessage

QUEUE_HELP = (
    "The queue: a name (enrich, acme/enrich), a path (./work/acme/enrich) or a URL "
    "(file:/srv/work/acme/enrich, sqlite:work.db/enrich, sqs:enrich, https://sqs…/enrich). "
    f"Optional if {QUEUE_VARIABLE} is set."
)

STDIN = "-"  # instead of a file or a text
E = TypeVar("E", bound=Enum)

# The ranges of options. No store is asked for more than it accepts, and a number of threads or
# processes without a limit would use up the machine before any work is done.
ANY_COUNT = "0-1000000000"
CONCURRENCY = ("--concurrency", "-c", "1-1024")
PORT = "0-65535"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Every = Annotated[float, "Time between two updates."]
Queue = Annotated[str | None, "<QUEUE>", QUEUE_HELP]
Queues = Annotated[list[str] | None, "<QUEUE...>", QUEUE_HELP]
QueueAndId = Annotated[
    list[str] | None,
    "<QUEUE ID>",
    f"{QUEUE_HELP} Then the message's id.",
]
WithBody = Annotated[bool, "--body", "Show the messages too."]
Yes = Annotated[bool, "--yes", "-y", "Do not ask for confirmation."]


def parse_choice(
    option: str, given: str, choices: type[E], normalize: Callable[[str], str] = str
) -> E:
    """Return the member with that value. Raises UsageError with the valid values."""
    try:
        return choices(normalize(given))
    except ValueError:
        valid = ", ".join(choice.value for choice in choices)
        raise UsageError(f"{option} must be one of {valid}; got {given!r}") from None


# -- queues


def split_queue_and_rest(words: Sequence[str] | None, min_rest: int) -> tuple[str, list[str]]:
    """Return the queue and the words after it, of which there should be `min_rest`.

    If the variable is set, the first word names the queue only if more than `min_rest` words
    are given. So a command never works on the variable's queue while the user meant another.
    """
    given = list(words or ())
    if len(given) > min_rest or (given and not os.environ.get(QUEUE_VARIABLE)):
        return given[0], given[1:]
    return resolve_queue(), given


def split_queue_and_one(
    words: Sequence[str] | None, thing: str, example: str
) -> tuple[str, str]:
    """Return the queue and the only word after it. Raises UsageError for none or several."""
    queue, rest = split_queue_and_rest(words, min_rest=1)
    if len(rest) != 1:
        raise UsageError(
            f"one {thing} is needed after the queue, got {len(rest)}; write it as in "
            f"`holdfast {example}`"
        )
    return queue, rest[0]


def resolve_queue(given: str | None = None) -> str:
    """Return the given queue, or else the variable's. Raises UsageError if there is none."""
    if queue := given or os.environ.get(QUEUE_VARIABLE, ""):
        return queue
    hints = [f"name it first, as in `holdfast status enrich`, or set {QUEUE_VARIABLE}"]
    raise UsageError("no queue is given: " + "; ".join(hints + find_misspelt(os.environ)))


def open_manager(queue: str | None) -> "QueueManager[AnyMessage]":
    """Open an existing queue, which the caller closes. Raises UsageError for memory:."""
    from holdfast.queues.opening import open_queue

    url = resolve_queue(queue)
    _refuse_memory(url)
    return open_queue(url, create=False)


def find_new_queue(url: str) -> Path | None:
    """Return the folder or database of a local queue that does not exist yet, else None.

    Raises UsageError for memory:.
    """
    from holdfast.queues.opening import find_queue_path

    _refuse_memory(url)
    path = find_queue_path(url)
    return None if path is None or os.path.lexists(path) else path


def report_created(new: Path | None) -> None:
    """Say where a queue was created, because a mistyped name creates one too."""
    if new is not None:
        info(f"created the queue {new}")


def _refuse_memory(url: str) -> None:
    if parse_url(url, QUEUES).scheme == "memory":
        raise UsageError(
            "a memory: queue ends with its process, so no other command would find its "
            "messages; use a name (enrich), sqlite:work.db or sqs:NAME"
        )


def is_service(manager: "QueueManager[AnyMessage]") -> bool:
    """Return whether the queue is a remote service (SQS), which cannot be searched."""
    return "find" not in manager.capabilities


def to_limit(limit: int) -> int:
    """Return the limit, or a number above every queue's length for 0."""
    return limit or 2**62


# -- files


@contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading, or standard input for `-`. Raises UsageError."""
    if path == STDIN:
        if sys.stdin is None:
            raise UsageError("standard input is closed; give a file instead")
        yield sys.stdin.buffer
        return
    file = Path(path)
    try:
        stream = file.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path!r}: {error.strerror}") from None
    with stream:
        yield stream


# -- durations and sizes

_MAX_BYTES = 1 << 63
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_duration(text: str | float) -> float:
    """Return the seconds in a duration. Raises typer.BadParameter with the valid forms."""
    try:
        return text_module.parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_size(text: str | int) -> int:
    """Return the bytes in a size. Raises typer.BadParameter with the valid forms."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        step = 1024 if match[3] else 1000
        value = float(match[1]) * step ** " kmgt".index(match[2].lower() or " ")
    if value < 1:
        raise typer.BadParameter(f"{text!r} is not a size; write 500MB, 2GiB or plain bytes")
    if value > _MAX_BYTES:
        raise typer.BadParameter(f"{text!r} is more than 8388608TiB, the maximum of a file")
    return int(value)
