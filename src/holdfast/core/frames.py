"""Whole frames over a byte stream, on sides that may block and sides that must not."""

import os
from struct import Struct

_LENGTH = Struct("!I")
_CHUNK = 1 << 16


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
        """The next whole frame, or None when it is not there yet. EOFError: no more."""
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
        end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
        if len(received) < end:
            return None
        frame = bytes(received[_LENGTH.size : end])
        del received[:end]
        return frame

    def send(self, payload: bytes) -> bool:
        """Send a frame; False when some of it has to wait for `flush`."""
        self._unsent += _LENGTH.pack(len(payload)) + payload
        return self.flush()

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
