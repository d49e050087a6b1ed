"""Handing over messages: where they come from, the check, and the push itself.

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
from typing import BinaryIO

from holdfast.cli.arguments import QUEUE_VARIABLE, is_service
from holdfast.cli.console import info
from holdfast.cli.errors import InputRefused, UsageError
from holdfast.cli.progress import Meter
from holdfast.cli.push import STDIN
from holdfast.cli.push_input import records
from holdfast.cli.push_input.records import PushRecord
from holdfast.core.errors import (
    MalformedMessage,
    MessageTooLarge,
    QueueUnavailable,
)
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import AnyMessage, MessageCodec

_BATCH = 128
_CALL = 10  # what a service takes in one call: an error then costs the count of no more
_codec = MessageCodec(AnyMessage)


@dataclass(frozen=True, slots=True)
class PushSource:
    """Where messages come from; `batches` starts from the beginning each time."""

    name: str
    batches: Callable[[], Iterable[list[PushRecord]]]
    repeatable: bool

    def at(self, error: Exception) -> str:
        named = self.name and isinstance(error, InputRefused)
        return f"{self.name}, {error}" if named else str(error)


@contextmanager
def source_of(texts: list[str], file: Path | None) -> Iterator[PushSource]:
    if file is not None and texts:
        raise UsageError("give either --file or JSON, not both")
    if texts == [STDIN] or (file is not None and str(file) == STDIN):
        if sys.stdin is None:
            raise UsageError("standard input is closed: there is nothing to read")
        yield PushSource("standard input", lambda: records.from_stream(sys.stdin.buffer), False)
    elif file is not None:
        with _readable(file) as stream:
            yield _file_source(str(file), stream)
    elif texts:
        yield PushSource("", lambda: [list(records.from_arguments(texts))], True)
    else:
        raise UsageError(
            "nothing to push: give a JSON object, --file FILE, or - for standard input; "
            f"the queue comes first, unless {QUEUE_VARIABLE} is set"
        )


@contextmanager
def _readable(file: Path) -> Iterator[BinaryIO]:
    try:
        stream = file.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}") from None
    with stream:
        yield stream


def _file_source(name: str, stream: BinaryIO) -> PushSource:
    def from_the_start() -> Iterable[list[PushRecord]]:
        stream.seek(0)
        return records.from_stream(stream)

    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return PushSource(name, from_the_start, True)
    return PushSource(name, lambda: records.from_stream(stream), False)


def check(source: PushSource, message_id: str | None) -> int | None:
    """How many messages there are; None when that cannot be known beforehand."""
    if not source.repeatable:
        if message_id is not None:
            raise UsageError("--id is for one message: give it as an argument or by --file")
        return None
    try:
        with Meter("checking") as meter:
            for batch in _messages(source, message_id):
                meter.advance(len(batch))
    except InputRefused as error:
        raise InputRefused(
            f"{source.at(error)}; nothing was pushed: correct it and push again"
        ) from None
    if message_id is not None and meter.count != 1:
        raise UsageError(f"--id is for one message, not for {meter.count}; nothing was pushed")
    return meter.count


def _messages(source: PushSource, message_id: str | None) -> Iterator[list[AnyMessage]]:
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


def _sound(given: PushRecord, message_id: str | None) -> AnyMessage:
    message = records.message_of(given, message_id)
    try:
        _codec.encode(message)
    except (MalformedMessage, MessageTooLarge) as error:
        raise InputRefused(f"{given.where}: {error}") from None
    return message


def hand_over(
    manager: QueueManager[AnyMessage],
    source: PushSource,
    total: int | None,
    message_id: str | None,
    delay_seconds: float,
) -> list[str]:
    """Push everything; the ids in order. Raises with what was pushed before."""
    ids: list[str] = []
    size = _CALL if is_service(manager) else _BATCH
    try:
        with Meter("pushing", total) as meter:
            for messages in _messages(source, message_id):
                for start in range(0, len(messages), size):
                    part = messages[start : start + size]
                    ids += _pushed(manager, part, delay_seconds)
                    meter.advance(len(part))
    except (InputRefused, QueueUnavailable, MalformedMessage, MessageTooLarge) as error:
        before = f"the {len(ids):,} before it were pushed" if ids else "nothing was pushed"
        if is_service(manager) and isinstance(error, QueueUnavailable | MalformedMessage):
            before = _in_doubt(len(ids))
        raise type(error)(f"{source.at(error)}; {before}") from error
    except KeyboardInterrupt:
        info(f"{len(ids):,} were pushed")
        raise
    return ids


def _pushed(
    manager: QueueManager[AnyMessage], messages: list[AnyMessage], delay_seconds: float
) -> list[str]:
    try:
        return manager.push_many(messages, delay_seconds=delay_seconds)
    except ValueError as error:  # a delay that this kind of queue cannot keep
        raise UsageError(str(error)) from None


def _in_doubt(before: int) -> str:
    """A call for several may have done a part of it, or all but the answer."""
    return f"{before:,} were pushed for sure, of the {_CALL} after them perhaps some"
