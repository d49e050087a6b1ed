"""A client whose responses the tests choose, and heartbeats whose clock they move."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from holdfast.lease.clock import Clock
from holdfast.testing.clock import ManualClock
from holdfast.utils.sqs_heartbeat import SQSHeartbeat
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
HANDLE = "AQEB-secret-receipt-handle"


def sqs_error(code: str, status: int = 400) -> ClientError:
    """Make an error as botocore raises it; its text quotes the handle, as Amazon's does."""
    details = {"Code": code, "Message": f"Value {HANDLE} for parameter ReceiptHandle is bad"}
    response: Any = {"Error": details, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "ChangeMessageVisibility")


GONE = "ReceiptHandleIsInvalid"
THROTTLED = "ThrottlingException"


@dataclass(frozen=True)
class Beat:
    """One call, with its time and its requested visibility."""

    at: float
    seconds: int


class Sqs:
    """A client that accepts every call unless the test scripts an error.

    It records each call, and calls wait while `gate` is closed.
    """

    def __init__(self, clock: Clock) -> None:
        self.beats: list[Beat] = []
        self.requests: list[dict[str, Any]] = []
        self.threads: set[threading.Thread] = set()
        self.next_error: Callable[[], BaseException | None] = lambda: None
        self.before_response: Callable[[], None] = lambda: None
        self.gate = threading.Event()
        self.gate.set()
        self.inside = 0
        self.max_inside = 0
        self._clock = clock
        self._lock = threading.Lock()

    def change_message_visibility(self, **request: Any) -> None:
        """Record the call, wait for the gate, and raise the scripted error if there is one."""
        with self._lock:
            self.beats.append(Beat(self._clock.monotonic(), request["VisibilityTimeout"]))
            self.requests.append(request)
            self.threads.add(threading.current_thread())
            self.inside += 1
            self.max_inside = max(self.max_inside, self.inside)
        try:
            assert self.gate.wait(WAIT_TIMEOUT_SECONDS)
            self.before_response()
            if (error := self.next_error()) is not None:
                raise error
        finally:
            with self._lock:
                self.inside -= 1

    def fail(self, *errors: BaseException | None) -> None:
        """Raise these errors in the next calls; None lets a call succeed."""
        waiting = list(errors)
        self.next_error = lambda: waiting.pop(0) if waiting else None


class Ground:
    """Heartbeats on one manual clock and one client, which `close` stops."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sqs = Sqs(self.clock)
        self.made: list[SQSHeartbeat] = []
        self.began = self.clock.monotonic()

    def heartbeat(
        self, interval_sec: float = 20, visibility_timeout_sec: int = 60, **more: Any
    ) -> SQSHeartbeat:
        """Make a heartbeat."""
        more = {"client": self.sqs, "clock": self.clock, **more}
        heartbeat = SQSHeartbeat(URL, HANDLE, interval_sec, visibility_timeout_sec, **more)
        self.made.append(heartbeat)
        return heartbeat

    def start(self, *args: Any, **more: Any) -> SQSHeartbeat:
        """Make and start a heartbeat, and wait until its thread waits."""
        heartbeat = self.heartbeat(*args, **more)
        heartbeat.start()
        self.settle(heartbeat)
        return heartbeat

    def hang(self, *args: Any, **more: Any) -> SQSHeartbeat:
        """Make and start a heartbeat whose first call hangs until `gate` is opened."""
        self.sqs.gate.clear()
        heartbeat = self.heartbeat(*args, initial_beat=True, **more)
        heartbeat.start()
        wait_until(lambda: self.sqs.inside)
        return heartbeat

    def settle(self, heartbeat: SQSHeartbeat) -> None:
        """Wait until its thread has nothing to do at this time, or has ended."""
        wait_until(lambda: self.clock.waiting or not heartbeat.running)

    def advance(self, heartbeat: SQSHeartbeat, seconds: float, step: float = 1.0) -> None:
        """Let time pass in steps, each of which the thread can follow."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 1e-9:
            self.clock.advance(min(step, left))
            self.settle(heartbeat)

    @property
    def beat_times(self) -> list[float]:
        """The times of the beats, in seconds after the beginning."""
        return [beat.at - self.began for beat in self.sqs.beats]

    def close(self) -> None:
        """Open the gate and stop all heartbeats."""
        self.sqs.gate.set()
        for heartbeat in self.made:
            heartbeat.stop()
