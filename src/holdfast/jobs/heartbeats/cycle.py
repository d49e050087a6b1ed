"""A triggered cycle, for whoever waits for it."""

from threading import Event, Lock


class HeartbeatCycle:
    """Ended when all its parts are; the listing is the first of them."""

    def __init__(self) -> None:
        self.ended = Event()
        self.sent = 0
        self._parts = 1
        self._lock = Lock()

    def join(self) -> None:
        with self._lock:
            self._parts += 1

    def leave(self, *, sent: bool = False) -> None:
        """One part is done; whether a beat was sent in it."""
        with self._lock:
            self.sent += sent
            self._parts -= 1
            if self._parts == 0:
                self.ended.set()

    def end(self) -> None:
        """Do not wait for what is left: the orchestrator is stopped."""
        self.ended.set()
