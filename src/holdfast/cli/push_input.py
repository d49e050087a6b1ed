"""The input of `holdfast push`: open it, check it, and push its messages.

Arguments and regular files can be read twice, so they are checked completely before the first
message is pushed, and one bad line means that nothing is pushed. A stream cannot be read
twice, so its messages are pushed as they arrive, and the error for a bad one says how many
were pushed before it. Every refusal names the place, such as "line 7", "item 3" or
"argument 2".
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pydantic import ValidationError

from holdfast.cli.arguments import STDIN, is_service, open_input
from holdfast.cli.console import info
from holdfast.cli.errors import InputRefused, UsageError
from holdfast.cli.live_view import ProgressMeter
from holdfast.errors import MalformedMessage, MessageTooLarge, QueueUnavailable
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage, MessageCodec
from holdfast.variables import QUEUE_VARIABLE

# A stored message may have 1 MiB; as text with escapes and blanks it may be longer.
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
_CHUNK = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BATCH_SIZE = 128
_MAX_PER_CALL = 10  # SQS takes ten in a call; more would make more uncertain if one fails
_codec = MessageCodec(AnyMessage)


@dataclass(frozen=True, slots=True)
class PushRecord:
    """One value of the input, and its place. `parse` returns it or raises InputRefused."""

    where: str
    parse: Callable[[], Any]


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
        with open_input(STDIN) as stream:
            yield PushSource("standard input", lambda: _read_stream(stream), False)
    elif file is not None:
        with open_input(str(file)) as stream:
            yield _make_file_source(str(file), stream)
    elif texts:
        yield PushSource("", lambda: [list(_read_arguments(texts))], True)
    else:
        raise UsageError(
            "no message is given: use a JSON object, --file FILE, or - for standard input; "
            f"the queue comes first, unless {QUEUE_VARIABLE} is set"
        )


def _make_file_source(name: str, stream: BinaryIO) -> PushSource:
    def read_from_start() -> Iterable[list[PushRecord]]:
        stream.seek(0)
        return _read_stream(stream)

    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return PushSource(name, read_from_start, True)
    return PushSource(name, lambda: _read_stream(stream), False)


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
                good.append(_make_message(record, message_id))
            except InputRefused:
                yield good
                raise
        yield good


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
    chunk: list[AnyMessage] = []
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
            before = _describe_uncertain(len(ids), len(chunk))
        raise type(error)(f"{source.describe(error)}; {before}") from error
    except KeyboardInterrupt:
        info(f"{len(ids):,} were pushed")
        raise
    return ids


def _describe_uncertain(pushed: int, failed: int) -> str:
    """Say what is known after a failed call, which may have pushed some of its messages."""
    if failed == 1:
        last = "it is unknown whether this message was pushed"
        return f"the {pushed:,} before it were pushed; {last}" if pushed else last
    return f"{pushed:,} were certainly pushed, and perhaps some of the {failed} after them"


def _push_chunk(
    manager: QueueManager[AnyMessage], messages: list[AnyMessage], delay_seconds: float
) -> list[str]:
    try:
        return manager.push_many(messages, delay_seconds=delay_seconds)
    except ValueError as error:  # a delay that this kind of queue does not support
        raise UsageError(str(error)) from None


# -- records


def _read_arguments(words: Sequence[str]) -> Iterator[PushRecord]:
    for number, word in enumerate(words, 1):
        where = "the JSON given" if len(words) == 1 else f"argument {number}"
        # Bytes of argv that are not UTF-8 arrive as lone surrogates.
        yield _make_record(where, word.encode("utf-8", "surrogateescape"))


def _make_record(where: str, body: bytes) -> PushRecord:
    return PushRecord(where, lambda: _parse(body, where))


def _read_stream(stream: BinaryIO) -> Iterator[list[PushRecord]]:
    """Yield batches of the records that can be read without waiting, until the end.

    If the first line is a complete JSON object, each line is an object. Otherwise the stream
    is one document, which is an object or an array of objects.
    """
    batches = _read_lines(stream)
    first = next(filter(None, batches), [])
    if first and _is_document(first[0].text):
        yield list(_split_document(*_join_lines(first, batches)))
        return
    for batch in chain([first], batches):
        yield [_make_record(f"line {line.number}", line.text) for line in batch]


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: bytes


def _read_lines(stream: BinaryIO) -> Iterator[list[_Line]]:
    """Yield the lines that are not blank, in batches of what could be read at once."""
    read = getattr(stream, "read1", stream.read)  # read1 does not wait for a full buffer
    number, buffer = 1, b""
    while chunk := read(_CHUNK):
        if number == 1 and not buffer:
            chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
        *complete, buffer = (buffer + chunk).split(b"\n")
        if len(buffer) > MAX_LINE_BYTES:
            _refuse(f"line {number + len(complete)}", f"longer than {MAX_LINE_BYTES:,} bytes")
        yield _number_lines(complete, number)
        number += len(complete)
    yield _number_lines([buffer], number)


def _number_lines(lines: list[bytes], first: int) -> list[_Line]:
    return [_Line(number, line) for number, line in enumerate(lines, first) if line.strip()]


def _is_document(first_line: bytes) -> bool:
    line = first_line.strip()
    return not (line.startswith(b"{") and line.endswith(b"}"))


def _join_lines(lines: list[_Line], more: Iterable[list[_Line]]) -> tuple[int, bytes]:
    """Return the number of the first line, and the document from there on."""
    first, size = lines[0].number, 0
    texts: dict[int, bytes] = {}
    for batch in chain([lines], more):
        texts |= {line.number: line.text for line in batch}
        size += sum(len(line.text) for line in batch)
        if size > MAX_DOCUMENT_BYTES:
            _refuse(
                "the document",
                f"longer than {MAX_DOCUMENT_BYTES:,} bytes; write one object per line",
            )
    last = max(texts)
    return first, b"\n".join(texts.get(number, b"") for number in range(first, last + 1))


def _split_document(first_line: int, body: bytes) -> Iterator[PushRecord]:
    value = _parse(body, "", first_line)
    if not isinstance(value, list):
        yield PushRecord("the document", lambda: value)
        return
    for index in range(len(value)):
        yield PushRecord(f"item {index + 1}", partial(value.__getitem__, index))


def _parse(body: bytes, where: str, first_line: int = 1) -> Any:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        line = first_line + body.count(b"\n", 0, error.start)
        _refuse(
            where or f"line {line}", "not UTF-8 text; convert it first, for example with iconv"
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if not where:
            where = f"line {first_line + error.lineno - 1}"
        _refuse(where, f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        _refuse(where or "the document", f"not JSON: {error}")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON; use null or a string")


def _refuse(where: str, reason: str) -> NoReturn:
    raise InputRefused(f"{where}: {reason}") from None


# -- messages


def _make_message(record: PushRecord, message_id: str | None) -> AnyMessage:
    """Return the message of a record. Raises InputRefused if a queue could not store it."""
    value = record.parse()
    if not isinstance(value, dict):
        _refuse(record.where, f"a JSON object is needed, got a {_name_kind(value)}")
    try:
        data = value if message_id is None else {**value, "id": message_id}
        message = AnyMessage.model_validate(data)
        _codec.encode(message)
    except ValidationError as error:
        # The error leaves out the input, because errors must not hold a message's body.
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the message"
        _refuse(record.where, f"{field}: {first['msg']}")
    except (MalformedMessage, MessageTooLarge) as error:
        _refuse(record.where, str(error))
    return message


def _name_kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", str: "string", list: "list"}
    return names.get(type(value), "number")
