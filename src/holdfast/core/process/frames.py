"""Whole frames over a byte stream, on sides that may block and sides that must not."""

import os
from struct import Struct

from holdfast.core.errors import MessageTooLarge

# A message and a checkpoint have 1 MiB at most, and a head comes on top. What is longer is
# refused by its length, before it is read: a broken process must not fill our memory.
MAX_FRAME_BYTES = 2 * 1024 * 1024

_LENGTH = Struct("!I")
_CHUNK = 1 << 16


class BrokenFrame(ValueError):
    """The other side sent what is not a frame of the protocol. The text quotes none of it."""


class Frames:
    """Frames read from one descriptor and written to another.

    On descriptors that do not block, `read` and `flush` never wait: half a frame from
    a process that was stopped in mid-sentence must not stop its supervisor too.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._received = bytearray()
        self._unsent = bytearray()

    def read(self) -> bytes | None:
        """The next whole frame, or None when it is not there yet. EOFError: no more.

        Raises BrokenFrame when it is longer than MAX_FRAME_BYTES; so does every later call.
        """
        while (frame := self._cut()) is None:
            try:
                chunk = os.read(self._reads, _CHUNK)
            except BlockingIOError:
                return None
            if not chunk:
                raise EOFError("the other side is gone")
            self._received += chunk
        return frame

    def _cut(self) -> bytes | None:
        received = self._received
        if len(received) < _LENGTH.size:
            return None
        length = _LENGTH.unpack_from(received)[0]
        if length > MAX_FRAME_BYTES:
            raise BrokenFrame(f"its length is {length:,} bytes, the limit {MAX_FRAME_BYTES:,}")
        end = _LENGTH.size + length
        if len(received) < end:
            return None
        frame = bytes(received[_LENGTH.size : end])
        del received[:end]
        return frame

    def send(self, payload: bytes) -> bool:
        """Send a frame; False when some of it has to wait for `flush`.

        Raises MessageTooLarge, and sends nothing, when the other side would refuse it.
        """
        if len(payload) > MAX_FRAME_BYTES:
            raise MessageTooLarge(
                f"{len(payload):,} bytes are too much for a process, the limit is "
                f"{MAX_FRAME_BYTES:,}: store them elsewhere and pass their address"
            )
        self._unsent += _LENGTH.pack(len(payload)) + payload
        return self.flush()

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    def flush(self) -> bool:
        """Send on what is left; True when nothing is. To nobody, all is sent."""
        while self._unsent:
            try:
                sent = os.write(self._writes, self._unsent)
            except BlockingIOError:
                return False
            except BrokenPipeError:
                sent = len(self._unsent)
            del self._unsent[:sent]
        return True
