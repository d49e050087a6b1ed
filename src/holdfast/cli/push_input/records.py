"""Reading messages from JSON: arguments, a document, or lines as they come.

Everything is refused with its place: "line 7", "item 3", "argument 2".
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, NoReturn

from pydantic import ValidationError

from holdfast.cli.errors import InputRefused
from holdfast.core.queue.message import AnyMessage

# A message may take 1 MiB when stored; as text with escapes and blanks it may be longer.
MAX_LINE = 8 * 1024 * 1024
LARGEST_DOCUMENT = 64 * 1024 * 1024
_CHUNK = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class PushRecord:
    """One JSON value and where it stood."""

    where: str
    value: Any


def from_arguments(words: Sequence[str]) -> Iterator[PushRecord]:
    for number, word in enumerate(words, 1):
        where = "the JSON given" if len(words) == 1 else f"argument {number}"
        # Bytes of argv that are no UTF-8 arrive as lone surrogates.
        body = word.encode("utf-8", "surrogateescape")
        yield PushRecord(where, _parsed(body, where))


def from_stream(stream: BinaryIO) -> Iterator[list[PushRecord]]:
    """What can be had without waiting, again and again, until the end.

    The first line decides: a whole JSON object means one object per line; anything else
    is read as one document, an object or an array of them.
    """
    batches = _lines(stream)
    for batch in batches:
        if not batch:
            continue
        if _is_document(batch[0].text):
            yield list(_document(_whole(batch, batches)))
            return
        yield from _objects(batch)
        break
    for batch in batches:
        yield from _objects(batch)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: bytes


def _lines(stream: BinaryIO) -> Iterator[list[_Line]]:
    """Lines that are not blank, in batches of what was there to read."""
    read = getattr(stream, "read1", stream.read)  # read1 does not wait for a full buffer
    number, buffer = 1, b""
    while chunk := read(_CHUNK):
        if number == 1 and not buffer:
            chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
        *whole, buffer = (buffer + chunk).split(b"\n")
        if len(buffer) > MAX_LINE:
            _refuse(f"line {number + len(whole)}", f"longer than {MAX_LINE:,} bytes")
        yield _numbered(whole, number)
        number += len(whole)
    yield _numbered([buffer], number)


def _numbered(lines: list[bytes], first: int) -> list[_Line]:
    return [_Line(number, line) for number, line in enumerate(lines, first) if line.strip()]


def _objects(lines: list[_Line]) -> Iterator[list[PushRecord]]:
    """One batch; when a line is bad, those before it come first, then the refusal."""
    good: list[PushRecord] = []
    for line in lines:
        where = f"line {line.number}"
        try:
            good.append(PushRecord(where, _parsed(line.text, where)))
        except InputRefused:
            yield good
            raise
    yield good


def _is_document(first_line: bytes) -> bool:
    line = first_line.strip()
    return not (line.startswith(b"{") and line.endswith(b"}"))


def _whole(lines: list[_Line], more: Iterable[list[_Line]]) -> tuple[int, bytes]:
    """The number of the first line, and the document from there on."""
    first, size = lines[0].number, 0
    texts: dict[int, bytes] = {}
    for batch in chain([lines], more):
        texts |= {line.number: line.text for line in batch}
        size += sum(len(line.text) for line in batch)
        if size > LARGEST_DOCUMENT:
            _refuse("the document", f"above {LARGEST_DOCUMENT:,} bytes: one object per line")
    last = max(texts)
    return first, b"\n".join(texts.get(number, b"") for number in range(first, last + 1))


def _document(numbered: tuple[int, bytes]) -> Iterator[PushRecord]:
    first_line, body = numbered
    value = _parsed(body, "", first_line)
    if not isinstance(value, list):
        yield PushRecord("the document", value)
        return
    for number, item in enumerate(value, 1):
        yield PushRecord(f"item {number}", item)


def _parsed(body: bytes, where: str, first_line: int = 1) -> Any:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        line = first_line + body.count(b"\n", 0, error.start)
        _refuse(where or f"line {line}", "not UTF-8 text: convert it first, with iconv say")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        if not where:
            where = f"line {first_line + error.lineno - 1}"
        _refuse(where, f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        _refuse(where or "the document", f"not JSON: {error}")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON; use null or a string")


def _refuse(where: str, why: str) -> NoReturn:
    raise InputRefused(f"{where}: {why}") from None


def message_of(given: PushRecord, message_id: str | None = None) -> AnyMessage:
    """The message a JSON object stands for. Raises InputRefused."""
    if not isinstance(given.value, dict):
        _refuse(given.where, f"a JSON object is needed, this is a {_kind(given.value)}")
    data = given.value if message_id is None else {**given.value, "id": message_id}
    try:
        return AnyMessage.model_validate(data)
    except ValidationError as error:
        # Without the input: a body does not belong in an error.
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the message"
        _refuse(given.where, f"{field}: {first['msg']}")


def _kind(value: Any) -> str:
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
