"""`holdfast push`: push messages from arguments, a file or standard input.

Arguments and regular files can be read twice, so they are checked completely before the first
message is pushed, and one bad line means that nothing is pushed. A stream cannot be read
twice, so its messages are pushed as they arrive, and the error for a bad one says how many
were pushed before it. Every refusal names the place, such as "line 7", "item 3" or
"argument 2".
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

from pydantic import ValidationError

from holdfast.cli.arguments import (
    QUEUE_HELP,
    STDIN,
    AsJson,
    find_new_queue,
    is_service,
    open_input,
    report_created,
    resolve_queue,
)
from holdfast.cli.console import InputRefused, UsageError, info, print_either
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
_MAX_IDS = 10  # that are printed one by one

Record = tuple[str, Any]  # its place in the input, and its bytes or its parsed value
Line = tuple[int, bytes]


def push(
    words: Annotated[
        list[str] | None,
        "<QUEUE JSON>",
        f"{QUEUE_HELP} Then JSON objects, or - to read lines from standard input.",
    ] = None,
    file: Annotated[
        Path | None, "Read a file with a JSON object, an array of them, or one per line."
    ] = None,
    delay: Annotated[
        float | None, "Deliver no earlier than after this time (30s, 5m, 2h, 7d)."
    ] = None,
    message_id: Annotated[
        str | None, "--id", "The id of the message, if there is only one."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Push messages. When this has returned, they cannot be lost."""
    from holdfast.queues.opening import open_queue

    queue, texts = _split_queue_and_texts(words or [])
    with _open_source(texts, file) as source:
        total = _check_source(source, message_id)
        new = find_new_queue(queue)
        with open_queue(queue, AnyMessage) as manager:
            ids = _push_all(manager, source, total, message_id, delay or 0.0)
    report_created(new)
    lines = ids if len(ids) <= _MAX_IDS else [f"pushed {len(ids):,} messages to {manager.name}"]
    print_either(as_json, {"queue": manager.name, "pushed": len(ids), "ids": ids}, *lines)


def _split_queue_and_texts(words: list[str]) -> tuple[str, list[str]]:
    """Return the queue and the texts.

    The queue can be left out, because neither JSON nor `-` is a valid queue name.
    """
    if words and words[0] != STDIN and words[0].lstrip()[:1] not in ("{", "["):
        queue, texts = words[0], words[1:]
    else:
        queue, texts = resolve_queue(), words
    if STDIN in texts and len(texts) > 1:
        raise UsageError("- reads all messages from standard input; give no other JSON with it")
    return queue, texts


@dataclass(frozen=True, slots=True)
class _PushSource:
    """An input. Each call of `batches` starts from its beginning, if it is repeatable."""

    name: str
    batches: Callable[[], Iterable[list[Record]]]
    repeatable: bool

    def describe(self, error: Exception) -> str:
        """Return the error's text, with the input's name if the input is at fault."""
        named = self.name and isinstance(error, InputRefused)
        return f"{self.name}, {error}" if named else str(error)

    def read_messages(self, message_id: str | None) -> Iterator[list[AnyMessage]]:
        """Yield batches of messages. If one is bad, yield those before it, then raise."""
        for batch in self.batches():
            good = []
            for where, value in batch:
                try:
                    good.append(_make_message(where, value, message_id))
                except InputRefused:
                    yield good
                    raise
            yield good


@contextmanager
def _open_source(texts: list[str], file: Path | None) -> Iterator[_PushSource]:
    """Open the input: JSON texts, a file, or standard input. Raises UsageError."""
    if file is not None and texts:
        raise UsageError("--file and JSON cannot be combined; give one of them")
    if file is None and not texts:
        raise UsageError(
            "no message is given: use a JSON object, --file FILE, or - for standard input; "
            f"the queue comes first, unless {QUEUE_VARIABLE} is set"
        )
    if file is None and texts != [STDIN]:
        yield _PushSource("", lambda: [_number_arguments(texts)], repeatable=True)
        return
    path = STDIN if file is None else str(file)
    with open_input(path) as stream:
        is_file = path != STDIN and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)

        def read() -> Iterator[list[Record]]:
            if is_file:
                stream.seek(0)
            return _read_stream(stream)

        yield _PushSource("standard input" if path == STDIN else path, read, is_file)


def _check_source(source: _PushSource, message_id: str | None) -> int | None:
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
            for batch in source.read_messages(message_id):
                meter.advance(len(batch))
    except InputRefused as error:
        raise InputRefused(
            f"{source.describe(error)}; nothing was pushed; correct it and push again"
        ) from None
    if message_id is not None and meter.count != 1:
        raise UsageError(f"--id needs a single message, got {meter.count}; nothing was pushed")
    return meter.count


def _push_all(
    manager: QueueManager[AnyMessage],
    source: _PushSource,
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
            for messages in source.read_messages(message_id):
                for start in range(0, len(messages), size):
                    chunk = messages[start : start + size]
                    ids += manager.push_many(chunk, delay_seconds=delay_seconds)
                    meter.advance(len(chunk))
    except (InputRefused, QueueUnavailable, MalformedMessage, MessageTooLarge) as error:
        before = f"the {len(ids):,} before it were pushed" if ids else "nothing was pushed"
        if is_service(manager) and isinstance(error, QueueUnavailable | MalformedMessage):
            before = _describe_uncertain(len(ids), len(chunk))
        raise type(error)(f"{source.describe(error)}; {before}") from error
    except ValueError as error:  # a delay that this kind of queue does not support
        raise UsageError(str(error)) from None
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


# -- records


def _number_arguments(words: list[str]) -> list[Record]:
    places = (f"argument {number}" for number in range(1, len(words) + 1))
    # Bytes of argv that are not UTF-8 arrive as lone surrogates.
    bodies = (word.encode("utf-8", "surrogateescape") for word in words)
    return list(zip(["the JSON given"] if len(words) == 1 else places, bodies, strict=True))


def _read_stream(stream: BinaryIO) -> Iterator[list[Record]]:
    """Yield batches of the records that can be read without waiting, until the end.

    If the first line is a complete JSON object, each line is an object. Otherwise the stream
    is one document, which is an object or an array of objects.
    """
    batches = _read_lines(stream)
    start: list[Line] = []
    first = b""
    while not first and (batch := next(batches, None)) is not None:
        start += batch
        first = next(filter(None, (text.strip() for _, text in start)), b"")
    batches = chain([start], batches)
    if first and not (first.startswith(b"{") and first.endswith(b"}")):
        yield _split_document(batches)
        return
    for batch in batches:
        yield [(f"line {number}", text) for number, text in batch if text.strip()]


def _read_lines(stream: BinaryIO) -> Iterator[list[Line]]:
    """Yield the numbered lines, in batches of what could be read at once."""
    read = getattr(stream, "read1", stream.read)  # read1 does not wait for a full buffer
    number, buffer = 1, b""
    while chunk := read(_CHUNK):
        if number == 1 and not buffer:
            chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
        *complete, buffer = (buffer + chunk).split(b"\n")
        if len(buffer) > MAX_LINE_BYTES:
            _refuse(f"line {number + len(complete)}", f"longer than {MAX_LINE_BYTES:,} bytes")
        yield list(enumerate(complete, number))
        number += len(complete)
    yield [(number, buffer)]


def _split_document(batches: Iterable[list[Line]]) -> list[Record]:
    lines: list[bytes] = []
    size = 0
    for batch in batches:
        lines += (text for _, text in batch)
        size += sum(len(text) for _, text in batch)
        if size > MAX_DOCUMENT_BYTES:
            _refuse(
                "the document",
                f"longer than {MAX_DOCUMENT_BYTES:,} bytes; write one object per line",
            )
    value = _parse(b"\n".join(lines).rstrip())
    if not isinstance(value, list):
        return [("the document", value)]
    return [(f"item {number}", item) for number, item in enumerate(value, 1)]


def _parse(body: bytes, where: str = "") -> Any:
    """Return the value of JSON. Without a place, a refusal names the line in the body."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        line = 1 + body.count(b"\n", 0, error.start)
        _refuse(
            where or f"line {line}", "not UTF-8 text; convert it first, for example with iconv"
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = where or f"line {error.lineno}"
        _refuse(place, f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        _refuse(where or "the document", f"not JSON: {error}")


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON; use null or a string")


def _refuse(where: str, reason: str) -> NoReturn:
    raise InputRefused(f"{where}: {reason}") from None


# -- messages

_codec = MessageCodec(AnyMessage)
_KINDS = {type(None): "null", bool: "true or false", str: "string", list: "list"}


def _make_message(where: str, value: Any, message_id: str | None) -> AnyMessage:
    """Return the message of a record. Raises InputRefused if a queue could not store it."""
    if isinstance(value, bytes):
        value = _parse(value, where)
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "number")
        _refuse(where, f"a JSON object is needed, got a {kind}")
    try:
        data = value if message_id is None else {**value, "id": message_id}
        message = AnyMessage.model_validate(data)
        _codec.encode(message)
    except ValidationError as error:
        # The error leaves out the input, because errors must not hold a message's body.
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the message"
        _refuse(where, f"{field}: {first['msg']}")
    except (MalformedMessage, MessageTooLarge) as error:
        _refuse(where, str(error))
    return message
