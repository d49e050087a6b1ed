"""Numbered, length-prefixed frames over pipes, for descriptors that block and that do not.

    length of the rest (4 bytes)   number (8 bytes)   payload (at least 1 byte)

The number is that of the attempt which the frame is about, or 0. So a frame that comes late
or twice cannot be taken for one about another attempt. All child processes have these frames:

    parent ─▶ child   the length of the pickled Program, then the Program in parts;
                      then the frames of the program. The end of the pipe ends the child.
    child  ─▶ parent  READY or BROKEN after the start, PULSE regularly;
                      besides these, the frames of the program

Only the user's code is pickled, because it is code. The parent checks a child's frames as
strictly as those of an untrusted process. This module imports little, because each child
process loads it.
"""

import json
import os
import re
from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

from holdfast.errors import MessageTooLarge

# A message or a checkpoint has at most 1 MiB, plus a header. A longer frame is refused by its
# length before it is read, so that a broken process cannot fill this process's memory.
MAX_FRAME_BYTES = 2 * 1024 * 1024

_LENGTH = Struct("!I")
_HEAD = Struct("!IQ")
_NUMBER_BYTES = _HEAD.size - _LENGTH.size
_CHUNK = 1 << 16

READY, BROKEN, PULSE = b"r", b"b", b"p"

MAX_TEXT = 500  # characters of an error message
MAX_CODE = 100
_MAX_SCANNED = 10_000

_IN_URL = r"[^\s'\"<>]*"  # rather too much is hidden than too little
_USER = re.compile(rf"://{_IN_URL}@")
_QUERY = re.compile(rf"(://[^\s'\"<>?#]*)[?#]{_IN_URL}")


class BrokenFrame(ValueError):
    """The peer sent an invalid frame. The text never quotes the frame."""


class Frames:
    """Reads frames from one descriptor and writes frames to another.

    With non-blocking descriptors, `read` and `flush` never wait. So a process that stops in
    the middle of a frame does not block its supervisor.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._received = bytearray()
        self._unsent = bytearray()
        self._is_closed = False

    def read(self) -> tuple[int, bytes] | None:
        """Return the number and the payload of the next frame, or None if it is not complete.

        Raises EOFError if the peer closed the pipe. Raises BrokenFrame, now and in every
        later call, if the frame is empty or longer than MAX_FRAME_BYTES.
        """
        while (frame := self._take_frame()) is None:
            try:
                chunk = os.read(self._read_fd, _CHUNK)
            except BlockingIOError:
                return None
            if not chunk:
                raise EOFError("the peer closed the pipe")
            self._received += chunk
        return frame

    def _take_frame(self) -> tuple[int, bytes] | None:
        received = self._received
        if len(received) < _LENGTH.size:
            return None
        length = _LENGTH.unpack_from(received)[0]
        if length <= _NUMBER_BYTES:
            raise BrokenFrame("it is too short")
        if length > MAX_FRAME_BYTES:
            raise BrokenFrame(f"its length is {length:,} bytes, the limit {MAX_FRAME_BYTES:,}")
        end = _LENGTH.size + length
        if len(received) < end:
            return None
        number = _HEAD.unpack_from(received)[1]
        payload = bytes(received[_HEAD.size : end])
        del received[:end]
        return number, payload

    def send(self, number: int, payload: bytes) -> None:
        """Send a frame. A part of it may stay buffered until `flush`.

        Raises MessageTooLarge, and sends nothing, if the peer would refuse the frame.
        """
        self.buffer(number, payload)
        self.flush()

    def buffer(self, number: int, payload: bytes) -> None:
        """Keep a frame until `flush`, so that several frames need one system call.

        Raises MessageTooLarge, and keeps nothing, if the peer would refuse the frame.
        """
        length = _NUMBER_BYTES + len(payload)
        if length > MAX_FRAME_BYTES:
            raise MessageTooLarge(
                f"{length:,} bytes are too much for a process, the limit is "
                f"{MAX_FRAME_BYTES:,}: store them elsewhere and pass their address"
            )
        if not self._is_closed:
            self._unsent += _HEAD.pack(length, number) + payload

    @property
    def unsent_bytes(self) -> int:
        """The number of buffered bytes."""
        return len(self._unsent)

    def flush(self) -> None:
        """Write buffered bytes. If the peer has closed the pipe, discard them."""
        while self._unsent:
            try:
                sent = os.write(self._write_fd, self._unsent)
            except BlockingIOError:
                return
            except BrokenPipeError:
                sent = len(self._unsent)
            del self._unsent[:sent]

    def close(self) -> None:
        """Close the pipe to the peer, and discard what is buffered and what will be."""
        if not self._is_closed:
            self._is_closed = True
            self._unsent.clear()
            os.close(self._write_fd)


# -- what the frames of all child processes carry


class Program(NamedTuple):
    """What a child process runs: `prepare(code, link, **options)` of a module.

    `prepare` returns the function that serves the parent, and the child is READY then.
    """

    module: str
    code: bytes  # the user's code, pickled
    options: Mapping[str, Any]
    imports_main: bool = False  # the user's code may be in the parent's main module


def pack_broken(error: BaseException) -> bytes:
    """Make a BROKEN frame: the child cannot load the user's code."""
    return BROKEN + json.dumps(describe_error(error)).encode()


def unpack_broken(frame: bytes) -> tuple[str, str]:
    """Return the code and the message of the error. Raises BrokenFrame.

    The code may be shown anywhere; show the message only to the operator.
    """
    return unpack_error(parse_json(frame[1:]))


def unpack_error(error: Any) -> tuple[str, str]:
    """Return the code and the message of an error. Raises BrokenFrame."""
    match error:
        case {"code": str(code), "message": str(message)}:
            return _check_text(code, MAX_CODE), _check_text(message, MAX_TEXT)
    raise BrokenFrame("its error is invalid")


def _check_text(text: str, max_length: int) -> str:
    # Every store refuses a lone surrogate.
    if len(text) > max_length or text != _replace_surrogates(text):
        raise BrokenFrame("its text is too long, or not Unicode")
    return text


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def parse_json(text: bytes) -> Any:
    """Parse JSON. Raises BrokenFrame, also for numbers that JSON does not have."""
    try:
        return _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        # The text of `json` would quote the frame.
        raise BrokenFrame("it is not JSON") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def describe_error(error: BaseException) -> dict[str, str]:
    """Return the error's type and its text without secrets, as they may leave the process."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # even the error's own __str__ may raise
        text = ""
    return {"code": hide_secrets(name, MAX_CODE), "message": hide_secrets(text, MAX_TEXT)}


def hide_secrets(text: Any, max_length: int) -> str:
    """Hide credentials in URLs, then cut the text.

    In the opposite order, a URL that was cut would not be recognized.
    """
    valid = _replace_surrogates(_shorten(str(text)))
    hidden = _QUERY.sub(r"\1?…", _USER.sub("://…@", valid))
    return hidden if len(hidden) <= max_length else hidden[: max_length - 1] + "…"


def _shorten(text: str) -> str:
    """Cut a long text between words, so that no URL is cut. An error may quote a whole page."""
    if len(text) <= _MAX_SCANNED:
        return text
    return " ".join(text[:_MAX_SCANNED].split()[:-1]) + " …"
