"""`holdfast push`: push messages from arguments, a file or standard input.

The input is read twice: it is checked completely before the first message is pushed, and one
bad line means that nothing is pushed. What is not a regular file is copied to a temporary one
first. Every refusal names the place, such as "line 7", "item 3" or "argument 2".
"""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, NoReturn

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
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BATCH_SIZE = 128
_MAX_PER_CALL = 10  # SQS takes ten in a call; more would make more uncertain if one fails
_MAX_IDS = 10  # that are printed one by one

Record = tuple[str, Any]  # its place in the input, and its bytes or its parsed value


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
    """An input. Each call of `records` starts from its beginning."""

    name: str
    records: Callable[[], Iterable[Record]]

    def describe(self, error: Exception) -> str:
        """Return the error's text, with the input's name if the input is at fault."""
        named = self.name and isinstance(error, InputRefused)
        return f"{self.name}, {error}" if named else str(error)

    def read_messages(self, message_id: str | None) -> Iterator[AnyMessage]:
        """Yield the messages. Raises InputRefused for the first that is none."""
        for where, value in self.records():
            yield _make_message(where, value, message_id)


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
        yield _PushSource("", lambda: _number_arguments(texts))
        return
    path = STDIN if file is None else str(file)
    with open_input(path) as stream, TemporaryFile() as copy:
        source: IO[bytes] = stream
        if path == STDIN or not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            shutil.copyfileobj(stream, copy)
            source = copy
        name = "standard input" if path == STDIN else path
        yield _PushSource(name, lambda: _read_records(source))


def _check_source(source: _PushSource, message_id: str | None) -> int:
    """Check the input and return its number of messages. Raises InputRefused, UsageError."""
    try:
        with ProgressMeter("checking") as meter:
            for _ in source.read_messages(message_id):
                meter.advance(1)
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
    total: int,
    message_id: str | None,
    delay_seconds: float,
) -> list[str]:
    """Push all messages and return their ids in order.

    An error says how many messages were pushed before it.
    """
    ids: list[str] = []
    chunk: list[AnyMessage] = []
    size = _MAX_PER_CALL if is_service(manager) else _BATCH_SIZE
    messages = source.read_messages(message_id)
    try:
        with ProgressMeter("pushing", total) as meter:
            while chunk := list(islice(messages, size)):
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


def _read_records(stream: IO[bytes]) -> Iterator[Record]:
    """Yield the records of a file.

    If the first line is a complete JSON object, each line is an object. Otherwise the file is
    one document, which is an object or an array of objects.
    """
    first = next((text for _, text in _read_lines(stream)), b"{}")
    if first.startswith(b"{") and first.endswith(b"}"):
        yield from _read_lines(stream)
        return
    stream.seek(0)
    body = stream.read(MAX_DOCUMENT_BYTES + 1).removeprefix(_BYTE_ORDER_MARK)
    if len(body) > MAX_DOCUMENT_BYTES:
        limit = f"longer than {MAX_DOCUMENT_BYTES:,} bytes"
        _refuse("the document", f"{limit}; write one object per line")
    value = _parse(body.rstrip())
    if isinstance(value, list):
        yield from ((f"item {number}", item) for number, item in enumerate(value, 1))
    else:
        yield "the document", value


def _read_lines(stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that are not blank, each after its place."""
    stream.seek(0)
    lines = iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, 1):
        where = f"line {number}"
        if len(line) > MAX_LINE_BYTES:
            _refuse(where, f"longer than {MAX_LINE_BYTES:,} bytes")
        if text := line.removeprefix(_BYTE_ORDER_MARK if number == 1 else b"").strip():
            yield where, text


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
