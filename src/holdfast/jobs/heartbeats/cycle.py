"""A triggered heartbeat cycle that its caller waits for."""

from threading import Event, Lock


class HeartbeatCycle:
    """A cycle with several parts. It ends with its last part; the first is the listing."""

    def __init__(self) -> None:
        self.ended = Event()
        self.sent = 0
        self._parts = 1
        self._lock = Lock()

    def add_part(self) -> None:
        """Add a part that the cycle waits for."""
        with self._lock:
            self._parts += 1

    def finish_part(self, *, sent: bool = False) -> None:
        """Finish one part; `sent` says whether it sent a heartbeat."""
        with self._lock:
            self.sent += sent
            self._parts -= 1
            if self._parts == 0:
                self.ended.set()

    def abort(self) -> None:
        """End without waiting for the remaining parts, because the orchestrator stops."""
        self.ended.set()
