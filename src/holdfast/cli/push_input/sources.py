"""Open the input of `holdfast push`, check it, and push its messages.

Arguments and regular files can be read twice, so they are checked completely before the first
message is pushed, and one bad line means that nothing is pushed. A stream cannot be read
twice, so its messages are pushed as they arrive, and the error for a bad one says how many
were pushed before it.
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
from holdfast.cli.progress_meter import ProgressMeter
from holdfast.cli.push_input import STDIN, records
from holdfast.cli.push_input.records import PushRecord
from holdfast.core.errors import (
    MalformedMessage,
    MessageTooLarge,
    QueueUnavailable,
)
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import AnyMessage, MessageCodec

_BATCH_SIZE = 128
_MAX_PER_CALL = 10  # SQS takes ten in a call; more would make more uncertain if one fails
_codec = MessageCodec(AnyMessage)


@dataclass(frozen=True, slots=True)
class PushSource:
    """An input. Each call of `batches` starts from its beginning."""

    name: str
    batches: Callable[[], Iterable[list[PushRecord]]]
    repeatable: bool

    def describe(self, error: Exception) -> str:
        """Return the error's text, with the input's name if the input is at fault."""
        named = self.name and isinstance(error, InputRefused)
        return f"{self.name}, {error}" if named else str(error)


@contextmanager
def open_source(texts: list[str], file: Path | None) -> Iterator[PushSource]:
    """Open the input: JSON texts, a file, or standard input. Raises UsageError."""
    if file is not None and texts:
        raise UsageError("--file and JSON cannot be combined; give one of them")
    if texts == [STDIN] or (file is not None and str(file) == STDIN):
        if sys.stdin is None:
            raise UsageError("standard input is closed; give JSON or --file instead")
        yield PushSource("standard input", lambda: records.read_stream(sys.stdin.buffer), False)
    elif file is not None:
        with _open_file(file) as stream:
            yield _make_file_source(str(file), stream)
    elif texts:
        yield PushSource("", lambda: [list(records.read_arguments(texts))], True)
    else:
        raise UsageError(
            "no message is given: use a JSON object, --file FILE, or - for standard input; "
            f"the queue comes first, unless {QUEUE_VARIABLE} is set"
        )


@contextmanager
def _open_file(file: Path) -> Iterator[BinaryIO]:
    try:
        stream = file.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}") from None
    with stream:
        yield stream


def _make_file_source(name: str, stream: BinaryIO) -> PushSource:
    def read_from_start() -> Iterable[list[PushRecord]]:
        stream.seek(0)
        return records.read_stream(stream)

    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return PushSource(name, read_from_start, True)
    return PushSource(name, lambda: records.read_stream(stream), False)


def check_source(source: PushSource, message_id: str | None) -> int | None:
    """Check the input and return its number of messages, or None for a stream.

    Raises InputRefused, UsageError.
    """
    if not source.repeatable:
        if message_id is not None:
            raise UsageError(
                "--id needs a single message; give that as an argument or with --file"
            )
        return None
    try:
        with ProgressMeter("checking") as meter:
            for batch in _read_messages(source, message_id):
                meter.advance(len(batch))
    except InputRefused as error:
        raise InputRefused(
            f"{source.describe(error)}; nothing was pushed; correct it and push again"
        ) from None
    if message_id is not None and meter.count != 1:
        raise UsageError(f"--id needs a single message, got {meter.count}; nothing was pushed")
    return meter.count


def _read_messages(source: PushSource, message_id: str | None) -> Iterator[list[AnyMessage]]:
    """Yield batches of messages. If one is bad, yield those before it, then raise."""
    for batch in source.batches():
        good = []
        for record in batch:
            try:
                good.append(_check_record(record, message_id))
            except InputRefused:
                yield good
                raise
        yield good


def _check_record(record: PushRecord, message_id: str | None) -> AnyMessage:
    message = records.message_from_record(record, message_id)
    try:
        _codec.encode(message)
    except (MalformedMessage, MessageTooLarge) as error:
        raise InputRefused(f"{record.where}: {error}") from None
    return message


def push_all(
    manager: QueueManager[AnyMessage],
    source: PushSource,
    total: int | None,
    message_id: str | None,
    delay_seconds: float,
) -> list[str]:
    """Push all messages and return their ids in order.

    An error says how many messages were pushed before it.
    """
    ids: list[str] = []
    size = _MAX_PER_CALL if is_service(manager) else _BATCH_SIZE
    try:
        with ProgressMeter("pushing", total) as meter:
            for messages in _read_messages(source, message_id):
                for start in range(0, len(messages), size):
                    chunk = messages[start : start + size]
                    ids += _push_chunk(manager, chunk, delay_seconds)
                    meter.advance(len(chunk))
    except (InputRefused, QueueUnavailable, MalformedMessage, MessageTooLarge) as error:
        before = f"the {len(ids):,} before it were pushed" if ids else "nothing was pushed"
        if is_service(manager) and isinstance(error, QueueUnavailable | MalformedMessage):
            before = _describe_uncertain(len(ids))
        raise type(error)(f"{source.describe(error)}; {before}") from error
    except KeyboardInterrupt:
        info(f"{len(ids):,} were pushed")
        raise
    return ids


def _push_chunk(
    manager: QueueManager[AnyMessage], messages: list[AnyMessage], delay_seconds: float
) -> list[str]:
    try:
        return manager.push_many(messages, delay_seconds=delay_seconds)
    except ValueError as error:  # a delay that this kind of queue does not support
        raise UsageError(str(error)) from None


def _describe_uncertain(before: int) -> str:
    """Describe a failed call for several messages, which may have pushed some or all."""
    return (
        f"{before:,} were certainly pushed, and perhaps some of the {_MAX_PER_CALL} after them"
    )
