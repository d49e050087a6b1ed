"""`holdfast push`: hand over messages from arguments, a file or standard input.

What can be read twice (arguments, a regular file) is checked whole before the first
message is pushed, so one bad line means that nothing was. A stream cannot: its messages
are pushed as they come, and a bad one says how many were pushed before it.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from holdfast.cli import intake
from holdfast.cli.arguments import QUEUE_HELP, QUEUE_VARIABLE, AsJson, default_queue, opened
from holdfast.cli.console import answer, answer_json, clean
from holdfast.cli.durations import seconds
from holdfast.cli.failures import InputRefused, Usage
from holdfast.cli.intake import Given
from holdfast.cli.progress import Meter
from holdfast.core.errors import MalformedMessage, MessageTooLarge, QueueUnavailable

if TYPE_CHECKING:
    from holdfast.core.message import AnyMessage
    from holdfast.core.queue import QueueManager

STDIN = "-"
_FEW = 10  # ids are printed one by one up to this many
_BATCH = 128


def push(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUEUE] [JSON]...",
            help=f"{QUEUE_HELP} Then JSON objects, or - for lines from standard input.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A file: one JSON object, an array of them, or one per line."),
    ] = None,
    delay: Annotated[
        float,
        typer.Option(parser=seconds, metavar="DURATION", help="Deliver after 30s, 5m, 2h, 7d."),
    ] = 0.0,
    message_id: Annotated[
        str | None, typer.Option("--id", help="The id of the one message pushed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hand over messages. Once this has returned, they cannot be lost."""
    queue, texts = _queue_and_texts(words or [])
    with _source(texts, file) as source:
        total = _check(source, message_id)
        with opened(queue, create=True) as manager, Meter("pushing", total) as meter:
            ids = _push(manager, source, message_id, delay, meter, keep=as_json)
        _report(manager.name, ids, meter.count, as_json)


def _queue_and_texts(words: list[str]) -> tuple[str, list[str]]:
    """JSON and `-` are never a queue's name, so the queue can be left out."""
    if words and not _is_text(words[0]):
        queue, texts = words[0], words[1:]
    else:
        queue, texts = default_queue(), words
    if STDIN in texts and len(texts) > 1:
        raise Usage("- reads everything from standard input: give it alone")
    return queue, texts


def _is_text(word: str) -> bool:
    return word == STDIN or word.lstrip()[:1] in ("{", "[")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where messages come from; `batches` starts from the beginning each time."""

    name: str
    batches: Callable[[], Iterable[list[Given]]]
    repeatable: bool

    def at(self, error: Exception) -> str:
        named = self.name and isinstance(error, InputRefused)
        return f"{self.name}, {error}" if named else str(error)


@contextmanager
def _source(texts: list[str], file: Path | None) -> Iterator[_Source]:
    if file is not None and texts:
        raise Usage("give either --file or JSON, not both")
    if texts == [STDIN] or (file is not None and str(file) == STDIN):
        yield _Source("standard input", lambda: intake.from_stream(sys.stdin.buffer), False)
    elif file is not None:
        with _readable(file) as stream:
            yield _file_source(str(file), stream)
    elif texts:
        yield _Source("", lambda: [list(intake.from_arguments(texts))], True)
    else:
        raise Usage(
            "nothing to push: give a JSON object, --file FILE, or - for standard input; "
            f"the queue comes first, unless {QUEUE_VARIABLE} is set"
        )


@contextmanager
def _readable(file: Path) -> Iterator[BinaryIO]:
    try:
        stream = file.open("rb")
    except OSError as error:
        raise Usage(f"cannot read {str(file)!r}: {error.strerror}") from None
    with stream:
        yield stream


def _file_source(name: str, stream: BinaryIO) -> _Source:
    def from_the_start() -> Iterable[list[Given]]:
        stream.seek(0)
        return intake.from_stream(stream)

    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return _Source(name, from_the_start, True)
    return _Source(name, lambda: intake.from_stream(stream), False)


def _check(source: _Source, message_id: str | None) -> int | None:
    """How many messages there are; None when that cannot be known beforehand."""
    if not source.repeatable:
        if message_id is not None:
            raise Usage("--id is for one message: give it as an argument or by --file")
        return None
    try:
        total = sum(len(batch) for batch in _messages(source, message_id))
    except InputRefused as error:
        raise InputRefused(
            f"{source.at(error)}; nothing was pushed: correct it and push again"
        ) from None
    if message_id is not None and total != 1:
        raise Usage(f"--id is for one message, not for {total}; nothing was pushed")
    return total


def _messages(source: _Source, message_id: str | None) -> "Iterator[list[AnyMessage]]":
    """In batches; when one is bad, those before it come first, then the refusal."""
    for batch in source.batches():
        good = []
        for given in batch:
            try:
                good.append(_sound(given, message_id))
            except InputRefused:
                yield good
                raise
        yield good


def _sound(given: Given, message_id: str | None) -> "AnyMessage":
    from holdfast.core.message import AnyMessage, MessageCodec

    message = intake.message_of(given, message_id)
    try:
        MessageCodec(AnyMessage).encode(message)
    except (MalformedMessage, MessageTooLarge) as error:
        raise InputRefused(f"{given.where}: {error}") from None
    return message


def _push(
    manager: "QueueManager[AnyMessage]",
    source: _Source,
    message_id: str | None,
    delay: float,
    meter: Meter,
    *,
    keep: bool,
) -> list[str]:
    """The ids: all of them, or the first few when nobody wants them `keep`t."""
    ids: list[str] = []
    try:
        for messages in _messages(source, message_id):
            for start in range(0, len(messages), _BATCH):
                part = messages[start : start + _BATCH]
                pushed = manager.push_many(part, delay_seconds=delay)
                meter.advance(len(pushed))
                if keep or len(ids) <= _FEW:
                    ids += pushed
    except (InputRefused, QueueUnavailable) as error:
        before = f"the {meter.count:,} before it were pushed" if meter.count else "none pushed"
        raise type(error)(f"{source.at(error)}; {before}") from error
    return ids


def _report(queue: str, ids: list[str], count: int, as_json: bool) -> None:
    if as_json:
        answer_json({"queue": queue, "pushed": count, "ids": ids})
    elif count <= _FEW:
        for message_id in ids:
            answer(clean(message_id))
    else:
        answer(f"pushed {count:,} messages to {queue}")
