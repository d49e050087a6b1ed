"""Failures that a test scripts.

Faults are scripted per operation and used up one after the other. The simulated clients do
not retry by themselves, so the caller sees every scripted fault.
"""

from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock

from botocore.exceptions import ReadTimeoutError

from holdfast.lease.clock import Clock
from holdfast.testing.sqs.errors import ServiceError


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A fault: the call fails and has no effect."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LostReply:
    """A fault: the call has its effect, but its response is lost."""


@dataclass(frozen=True, slots=True)
class SlowReply:
    """A fault: the call has its effect at once, and its response comes late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RefusedEntries:
    """A fault: single entries of a batch fail, and the others have their effect."""

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
    """The scripted faults. First `after` calls succeed, then `times` calls fail."""

    def __init__(self, clock: Clock, operations: Collection[str]) -> None:
        self._clock = clock
        self._operations = frozenset(operations)
        self._script: list[_Scripted] = []
        self._lock = Lock()

    def fail(
        self,
        operation: str,
        code: str = "InternalError",
        *,
        error: Exception | None = None,
        times: float = 1,
        after: int = 0,
    ) -> None:
        """Refuse the next calls with `code`, or raise `error`. The queue does not change.

        An error of botocore (`EndpointConnectionError`, ...) simulates a network that is
        down. `times=math.inf` lasts until `clear`.
        """
        failure = CallFailure(error or ServiceError(code, f"Scripted by a test: {code}."))
        self._add(operation, failure, after, times)

    def lose_reply(self, operation: str, *, times: float = 1, after: int = 0) -> None:
        """Execute the next calls, and raise ReadTimeoutError at once."""
        self._add(operation, LostReply(), after, times)

    def slow(self, operation: str, seconds: float, *, times: float = 1, after: int = 0) -> None:
        """Execute the next calls at once, and respond `seconds` later by the clock.

        A client whose read timeout is shorter raises ReadTimeoutError after its timeout.
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
        """Refuse the entries at these positions of the next batches, counted from 0."""
        if not operation.endswith("Batch"):
            raise ValueError(f"operation must be a batch, but {operation} has no entries")
        refusal = ServiceError(code, f"Scripted by a test: {code}.")
        self._add(operation, RefusedEntries(positions, refusal), after, times)

    def clear(self) -> None:
        """Remove all scripted faults."""
        with self._lock:
            self._script.clear()

    # -- for the service

    def take_fault(self, operation: str) -> Fault | None:
        """Return the fault of this call, or None, and use it up."""
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

    def delay_or_lose_reply(
        self, fault: Fault | None, endpoint_url: str, timeout_seconds: float
    ) -> None:
        """Delay or lose the response of a call that had its effect."""
        match fault:
            case LostReply():
                raise ReadTimeoutError(endpoint_url=endpoint_url)
            case SlowReply(seconds):
                self._clock.sleep(min(seconds, timeout_seconds))
                if seconds > timeout_seconds:
                    raise ReadTimeoutError(endpoint_url=endpoint_url)

    def _add(self, operation: str, fault: Fault, after: int, times: float) -> None:
        # A misspelt name would never apply, and the test would prove nothing.
        if operation not in self._operations:
            known = ", ".join(sorted(self._operations))
            raise ValueError(f"operation must be one of {known}, not {operation!r}")
        with self._lock:
            self._script.append(_Scripted(operation, fault, after, times))
