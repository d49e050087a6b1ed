"""What goes wrong, when a test says so.

Faults are scripted per operation and used up one after the other. The clients here do
not retry by themselves: what a test scripts, its caller sees.
"""

from collections.abc import Collection
from dataclasses import dataclass
from threading import Event, Lock

from botocore.exceptions import ReadTimeoutError

from holdfast.core.clock import Clock
from holdfast.testing.sqs.errors import ServiceError


@dataclass(frozen=True, slots=True)
class CallFailure:
    """The call fails and has no effect."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LostReply:
    """The call has its effect; its caller never hears of it."""


@dataclass(frozen=True, slots=True)
class SlowReply:
    """The call has its effect at once and answers late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RefusedEntries:
    """Single entries of a batch fail, the others have their effect."""

    positions: tuple[int, ...]
    refusal: ServiceError


Fault = CallFailure | LostReply | SlowReply | RefusedEntries


@dataclass(slots=True, eq=False)
class _Scripted:
    operation: str
    fault: Fault
    skip: int
    times: float


class Faults:
    """Scripted failures. `after` calls go well first, then `times` do not."""

    def __init__(self, clock: Clock, operations: Collection[str]) -> None:
        self._clock = clock
        self._operations = frozenset(operations)
        self._script: list[_Scripted] = []
        self._lock = Lock()
        self._answering = Event()
        self._answering.set()

    def fail(
        self,
        operation: str,
        code: str = "InternalError",
        *,
        error: Exception | None = None,
        times: float = 1,
        after: int = 0,
    ) -> None:
        """Refuse the next calls with `code`, or raise `error`; nothing happens in the queue.

        An error of botocore (`EndpointConnectionError`, ...) plays a network that is down.
        `times=math.inf` lasts until `clear`.
        """
        failure = CallFailure(error or ServiceError(code, f"Scripted by a test: {code}."))
        self._add(operation, failure, after, times)

    def lose_reply(self, operation: str, *, times: float = 1, after: int = 0) -> None:
        """Do what the next calls ask, and answer with a ReadTimeoutError at once."""
        self._add(operation, LostReply(), after, times)

    def slow(self, operation: str, seconds: float, *, times: float = 1, after: int = 0) -> None:
        """Do what the next calls ask at once, and answer `seconds` later by the clock.

        A client whose read timeout is shorter gets a ReadTimeoutError by then.
        """
        self._add(operation, SlowReply(seconds), after, times)

    def refuse(
        self,
        operation: str,
        code: str = "InternalError",
        *,
        positions: tuple[int, ...] = (0,),
        times: float = 1,
        after: int = 0,
    ) -> None:
        """Fail the entries at these positions of the next batches, counted from 0."""
        if not operation.endswith("Batch"):
            raise ValueError(f"{operation} has no entries to refuse")
        refusal = ServiceError(code, f"Scripted by a test: {code}.")
        self._add(operation, RefusedEntries(positions, refusal), after, times)

    def freeze(self) -> None:
        """Answer nothing until `thaw`: calls wait, and fail when their client's time is up."""
        self._answering.clear()

    def thaw(self) -> None:
        """Answer again, also those who wait still."""
        self._answering.set()

    def clear(self) -> None:
        """Forget the script, and thaw."""
        with self._lock:
            self._script.clear()
        self.thaw()

    # -- for the service

    def let_in(self, endpoint_url: str, timeout_seconds: float) -> None:
        """Wait while frozen, but no longer than the client does."""
        if not self._answering.is_set() and not self._clock.wait(
            self._answering, timeout_seconds
        ):
            raise ReadTimeoutError(endpoint_url=endpoint_url)

    def draw(self, operation: str) -> Fault | None:
        """The fault of this call, used up by it."""
        with self._lock:
            scripted = next((s for s in self._script if s.operation == operation), None)
            if scripted is None:
                return None
            if scripted.skip > 0:
                scripted.skip -= 1
                return None
            scripted.times -= 1
            if scripted.times <= 0:
                self._script.remove(scripted)
            return scripted.fault

    def reply(self, fault: Fault | None, endpoint_url: str, timeout_seconds: float) -> None:
        """Delay or lose the reply of a call that had its effect."""
        match fault:
            case LostReply():
                raise ReadTimeoutError(endpoint_url=endpoint_url)
            case SlowReply(seconds):
                self._clock.sleep(min(seconds, timeout_seconds))
                if seconds > timeout_seconds:
                    raise ReadTimeoutError(endpoint_url=endpoint_url)

    def _add(self, operation: str, fault: Fault, after: int, times: float) -> None:
        # A misspelt name would script nothing, and the test would prove nothing.
        if operation not in self._operations:
            known = ", ".join(sorted(self._operations))
            raise ValueError(f"no operation {operation!r}; there are {known}")
        with self._lock:
            self._script.append(_Scripted(operation, fault, after, times))
