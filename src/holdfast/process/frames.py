"""Numbered, length-prefixed frames over pipes, for descriptors that block and that do not.

    length of the rest (4 bytes)   number (8 bytes)   payload (at least 1 byte)

The number is that of the attempt which the frame is about, or 0. So a frame that comes late
or twice cannot be taken for one about another attempt.
"""

import os
from struct import Struct

from holdfast.errors import MessageTooLarge

# A message or a checkpoint has at most 1 MiB, plus a header. A longer frame is refused by its
# length before it is read, so that a broken process cannot fill this process's memory.
MAX_FRAME_BYTES = 2 * 1024 * 1024

_LENGTH = Struct("!I")
_HEAD = Struct("!IQ")
_NUMBER_BYTES = _HEAD.size - _LENGTH.size
_CHUNK = 1 << 16


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
