"""A client whose answers the tests choose, and heartbeats whose time they move."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from holdfast.core.clock import Clock
from holdfast.testing.clock import ManualClock
from holdfast.utils.sqs_heartbeat import SQSHeartbeat

GENEROUS = 20.0  # real seconds until a hung test fails
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
HANDLE = "AQEB-secret-receipt-handle"


def sqs_error(code: str, status: int = 400) -> ClientError:
    """As botocore raises it; the text quotes the handle, as Amazon's does."""
    said = {"Code": code, "Message": f"Value {HANDLE} for parameter ReceiptHandle is bad"}
    response: Any = {"Error": said, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "ChangeMessageVisibility")


GONE = "ReceiptHandleIsInvalid"
THROTTLED = "ThrottlingException"


@dataclass(frozen=True)
class Beat:
    at: float
    seconds: int


class Sqs:
    """Grants everything until told otherwise; can be held up; writes down each call."""

    def __init__(self, clock: Clock) -> None:
        self.beats: list[Beat] = []
        self.said: list[dict[str, Any]] = []
        self.threads: set[threading.Thread] = set()
        self.fails: Callable[[], BaseException | None] = lambda: None
        self.before_answering: Callable[[], None] = lambda: None
        self.gate = threading.Event()
        self.gate.set()
        self.inside = 0
        self.most_inside = 0
        self._clock = clock
        self._lock = threading.Lock()

    def change_message_visibility(self, **said: Any) -> None:
        with self._lock:
            self.beats.append(Beat(self._clock.monotonic(), said["VisibilityTimeout"]))
            self.said.append(said)
            self.threads.add(threading.current_thread())
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        try:
            assert self.gate.wait(GENEROUS)
            self.before_answering()
            if (error := self.fails()) is not None:
                raise error
        finally:
            with self._lock:
                self.inside -= 1

    def fail(self, *errors: BaseException | None) -> None:
        """The next answers; all is well again afterwards."""
        waiting = list(errors)
        self.fails = lambda: waiting.pop(0) if waiting else None


class Ground:
    """Heartbeats on one manual clock and one client, all stopped at the end."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sqs = Sqs(self.clock)
        self.made: list[SQSHeartbeat] = []
        self.began = self.clock.monotonic()

    def heartbeat(
        self, interval_sec: float = 20, visibility_timeout_sec: int = 60, **more: Any
    ) -> SQSHeartbeat:
        more = {"client": self.sqs, "clock": self.clock, **more}
        heartbeat = SQSHeartbeat(URL, HANDLE, interval_sec, visibility_timeout_sec, **more)
        self.made.append(heartbeat)
        return heartbeat

    def started(self, *args: Any, **more: Any) -> SQSHeartbeat:
        heartbeat = self.heartbeat(*args, **more)
        heartbeat.start()
        self.settle(heartbeat)
        return heartbeat

    def settle(self, heartbeat: SQSHeartbeat) -> None:
        """Until its thread has nothing to do at this time, or has ended."""
        until(lambda: self.clock.waiting or not heartbeat.running)

    def let_pass(self, heartbeat: SQSHeartbeat, seconds: float, step: float = 1.0) -> None:
        """Let time pass in steps, each of which the thread can follow."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 1e-9:
            self.clock.advance(min(step, left))
            self.settle(heartbeat)

    @property
    def beaten_at(self) -> list[float]:
        """Seconds after the beginning."""
        return [beat.at - self.began for beat in self.sqs.beats]

    def close(self) -> None:
        self.sqs.gate.set()
        for heartbeat in self.made:
            heartbeat.stop()


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + GENEROUS
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.0005)
