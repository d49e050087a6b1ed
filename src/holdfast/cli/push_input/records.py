"""Read messages from JSON: arguments, a document, or lines as they arrive.

Every refusal names the place, such as "line 7", "item 3" or "argument 2".
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, NoReturn

from pydantic import ValidationError

from holdfast.cli.errors import InputRefused
from holdfast.core.queue.message import AnyMessage

# A stored message may have 1 MiB; as text with escapes and blanks it may be longer.
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
_CHUNK = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class PushRecord:
    """A JSON value and its place in the input."""

    where: str
    value: Any


def read_arguments(words: Sequence[str]) -> Iterator[PushRecord]:
    """Yield a record for each argument. Raises InputRefused."""
    for number, word in enumerate(words, 1):
        where = "the JSON given" if len(words) == 1 else f"argument {number}"
        # Bytes of argv that are not UTF-8 arrive as lone surrogates.
        body = word.encode("utf-8", "surrogateescape")
        yield PushRecord(where, _parse(body, where))


def read_stream(stream: BinaryIO) -> Iterator[list[PushRecord]]:
    """Yield batches of the records that can be read without waiting, until the end.

    If the first line is a complete JSON object, each line is an object. Otherwise the stream
    is one document, which is an object or an array of objects.
    """
    batches = _read_lines(stream)
    for batch in batches:
        if not batch:
            continue
        if _is_document(batch[0].text):
            yield list(_split_document(_join_lines(batch, batches)))
            return
        yield from _parse_lines(batch)
        break
    for batch in batches:
        yield from _parse_lines(batch)


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


def _parse_lines(lines: list[_Line]) -> Iterator[list[PushRecord]]:
    """Yield a batch. If a line is bad, yield the records before it, then raise."""
    good: list[PushRecord] = []
    for line in lines:
        where = f"line {line.number}"
        try:
            good.append(PushRecord(where, _parse(line.text, where)))
        except InputRefused:
            yield good
            raise
    yield good


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


def _split_document(numbered: tuple[int, bytes]) -> Iterator[PushRecord]:
    first_line, body = numbered
    value = _parse(body, "", first_line)
    if not isinstance(value, list):
        yield PushRecord("the document", value)
        return
    for number, item in enumerate(value, 1):
        yield PushRecord(f"item {number}", item)


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


def message_from_record(record: PushRecord, message_id: str | None = None) -> AnyMessage:
    """Return the message of a record. Raises InputRefused if it is not a JSON object."""
    if not isinstance(record.value, dict):
        _refuse(record.where, f"a JSON object is needed, got a {_name_kind(record.value)}")
    data = record.value if message_id is None else {**record.value, "id": message_id}
    try:
        return AnyMessage.model_validate(data)
    except ValidationError as error:
        # The error leaves out the input, because errors must not hold a message's body.
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the message"
        _refuse(record.where, f"{field}: {first['msg']}")


def _name_kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "string"
        case list():
            return "list"
    return "number"
