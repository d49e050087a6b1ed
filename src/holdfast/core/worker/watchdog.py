"""The watchdog runs a handler in a child process and watches three signs of life.

    alive        the process exists
    responding   its interpreter sends a pulse, which it cannot while stuck in C code
    progressing  its handler beats

The worker holds the lease and the child only works. If a sign is missing, the watchdog
records the child's stacks, terminates the child, and then kills it with everything it
started. The message is settled only after the child is dead, so that no other worker gets
work that is still being done.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.errors import HandlerNotFound, MalformedMessage, MessageTooLarge
from holdfast.core.events import ChildKilled, Events
from holdfast.core.lease.lease import Lease
from holdfast.core.process.frames import BrokenFrame
from holdfast.core.queue.message import M
from holdfast.core.worker import child_wire
from holdfast.core.worker.child_process import ChildProcess
from holdfast.core.worker.context import LeaseContext
from holdfast.core.worker.executor import Executor
from holdfast.core.worker.outcome import Abandoned, GiveBack, Outcome, Reject
from holdfast.core.worker.outcome_mapping import retry_logged

_START_SECONDS = 120.0
_MAX_FRAMES_AT_ONCE = 100  # of a child that never stops asking, before its signs are checked
_OUTSIDE_SIGNALS = ("SIGTERM", "SIGINT")


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """How long each sign of life may be missing."""

    stall_seconds: float | None = None
    timeout_seconds: float | None = None
    pulse_seconds: float = 30.0
    kill_grace_seconds: float = 2.0

    def compute_tick_seconds(self, lease_seconds: float) -> float:
        """Return the seconds between two checks, short enough to enforce the shortest limit."""
        limits = (self.stall_seconds, self.timeout_seconds, self.pulse_seconds, lease_seconds)
        shortest = min(limit for limit in limits if limit is not None)
        return min(0.25, max(0.01, shortest / 10))

    def compute_pulse_seconds(self, lease_seconds: float) -> float:
        """Return the seconds between two pulses of a child."""
        limits = (self.stall_seconds, self.pulse_seconds, lease_seconds)
        return min(1.0, *(limit / 4 for limit in limits if limit is not None))


@dataclass(slots=True)
class SignsOfLife:
    """When each sign of life was last seen."""

    started_at: float
    last_pulse_at: float
    last_beat_at: float

    def find_missing(self, limits: WatchdogLimits, now: float) -> str | None:
        """Return the reason to end the work, or None while no limit is exceeded."""
        timeout, stall = limits.timeout_seconds, limits.stall_seconds
        if timeout is not None and now - self.started_at >= timeout:
            return f"timed out after {timeout:g} s"
        if now - self.last_pulse_at >= limits.pulse_seconds:
            return f"the worker process did not answer for {limits.pulse_seconds:g} s"
        if stall is not None and now - self.last_beat_at >= stall:
            return f"stalled: no beat for {stall:g} s"
        return None


class Watchdog(Executor[M]):
    """An executor with one child process that it reuses for many messages."""

    def __init__(
        self,
        handler: bytes,
        limits: WatchdogLimits,
        make_context: Callable[[M, Lease], LeaseContext],
        *,
        queue_name: str,
        lease_seconds: float,
        stopping: Event,
        cancel_running: Event,
        clock: Clock,
        events: Events,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._make_context = make_context
        self._queue_name = queue_name
        self._tick = limits.compute_tick_seconds(lease_seconds)
        self._interval = limits.compute_pulse_seconds(lease_seconds)
        self._stopping = stopping
        self._cancel_running = cancel_running
        self._clock = clock
        self._events = events
        self._child: ChildProcess | None = None

    # -- the methods of an executor

    def prepare(self) -> bool:
        """Start a child and wait until it has imported the handler."""
        if self._child is not None:  # `execute` checks whether it is alive
            return True
        child = self._child = ChildProcess(self._handler, self._interval, self._clock)
        until = self._clock.monotonic() + _START_SECONDS
        while self._clock.monotonic() < until and not self._stopping.is_set():
            child.wait(0.1)
            if self._is_ready(child):
                return True
        if self._stopping.is_set():
            return False
        raise HandlerNotFound(f"the handler was not imported within {_START_SECONDS:g} s")

    def execute(self, message: M, lease: Lease) -> Outcome:
        """Have the child handle the message, and watch it until it ends."""
        # Replace a child that died while idle or sent more than its outcome. This costs no
        # attempt.
        if self._child is not None and not self._child.is_idle:
            self._discard()
        if not self.prepare():
            return GiveBack()
        assert self._child is not None
        try:
            self._child.begin(message, lease)
        except (MalformedMessage, MessageTooLarge) as error:
            return Reject(str(error), log_reason="it cannot be sent to a process")
        now = self._clock.monotonic()
        try:
            return self._watch(self._child, message, lease, SignsOfLife(now, now, now))
        except OSError as error:  # here OSError no longer means "not started"
            self._discard()
            raise RuntimeError(f"the watch over a child failed: {error}") from error

    def close(self) -> None:
        """End the child, after a grace unless running work must be cancelled."""
        child, self._child = self._child, None
        if child is not None:
            grace = 0.0 if self._cancel_running.is_set() else self._limits.kill_grace_seconds
            child.close(grace)

    def _discard(self) -> str | None:
        child, self._child = self._child, None
        return None if child is None else child.destroy()

    # -- starting

    def _is_ready(self, child: ChildProcess) -> bool:
        try:
            frame = child.read()
        except EOFError:
            child.wait_until_dead(self._limits.kill_grace_seconds)
            raise HandlerNotFound(
                f"the worker process ended while starting ({child.describe_exit()}); see its "
                'output above, and keep `if __name__ == "__main__":` around what a script runs'
            ) from None
        except BrokenFrame as error:
            raise HandlerNotFound(_describe_invalid(error, " while starting")) from None
        if frame not in (None, child_wire.READY):
            raise HandlerNotFound(_describe_invalid("it is not READY", " while starting"))
        return frame is not None

    # -- watching

    def _watch(
        self, child: ChildProcess, message: M, lease: Lease, signs: SignsOfLife
    ) -> Outcome:
        was_stopping = False
        while True:
            child.wait(self._tick)
            try:
                if (outcome := self._read_frames(child, message, lease)) is not None:
                    return outcome
                if not child.is_alive:
                    outcome = self._read_frames(child, message, lease)
                    return outcome or self._handle_death(child, lease)
                now = self._clock.monotonic()
                self._update_signs(child, lease, signs, now)
            except EOFError:
                return self._handle_death(child, lease)
            except BrokenFrame as error:
                return self._handle_broken_frame(child, lease, error)
            if (outcome := self._check_signs(child, message, lease, signs, now)) is not None:
                return outcome
            child.send_deadline(lease.deadline)
            if not was_stopping and self._stopping.is_set():
                child.send_stopping()
                was_stopping = True

    def _read_frames(self, child: ChildProcess, message: M, lease: Lease) -> Outcome | None:
        """Respond to the child's requests. Return the outcome when it sends one."""
        for _ in range(_MAX_FRAMES_AT_ONCE):
            if (frame := child.read()) is None:
                break
            if frame[:1] == child_wire.OUTCOME:
                return child_wire.unpack_outcome(frame)
            child.respond(self._handle_request(frame, message, lease))
        return None

    def _handle_request(self, request: bytes, message: M, lease: Lease) -> bytes:
        ctx = self._make_context(message, lease)
        match request[:1]:
            case child_wire.LOAD if request == child_wire.LOAD:
                return _pack_result(lambda: ctx.checkpoint)
            case child_wire.SAVE:
                checkpoint = child_wire.unpack_save(request)
                return _pack_result(lambda: ctx.beat(checkpoint=checkpoint))
            case _:
                raise BrokenFrame("it is of no known kind")

    def _update_signs(
        self, child: ChildProcess, lease: Lease, signs: SignsOfLife, now: float
    ) -> None:
        if pulses := child.read_pulses():
            signs.last_pulse_at = now
            if child_wire.MOVED in pulses:
                signs.last_beat_at = now
                lease.beat(now)

    def _check_signs(
        self, child: ChildProcess, message: M, lease: Lease, signs: SignsOfLife, now: float
    ) -> Outcome | None:
        if not lease.live or now >= lease.deadline:
            return self._kill_without_lease(child, lease)
        if self._cancel_running.is_set():
            return self._terminate(child, message, lease, "the worker stops", GiveBack())
        if (reason := signs.find_missing(self._limits, now)) is not None:
            stacks = child.dump_stacks() or "no stack: the process did not answer"
            return self._terminate(child, message, lease, reason, retry_logged(reason, stacks))
        return None

    # -- ending

    def _handle_death(self, child: ChildProcess, lease: Lease) -> Outcome:
        child.wait_until_dead(self._limits.kill_grace_seconds)
        stacks = child.read_crash_stacks()
        if (exit_text := self._discard()) is None:
            return self._abandon_unkillable(lease)
        # A process that signals a whole process group wants to stop the worker.
        if exit_text in _OUTSIDE_SIGNALS and self._clock.wait(self._stopping, 0.5):
            return GiveBack()
        return retry_logged(f"the worker process died ({exit_text})", stacks or None)

    def _handle_broken_frame(
        self, child: ChildProcess, lease: Lease, error: BrokenFrame
    ) -> Outcome:
        """Kill the child, because no later frame of it can be trusted."""
        exit_text = self._discard()
        problem = _describe_invalid(error)
        self._report(child, lease, problem)
        return self._abandon_unkillable(lease) if exit_text is None else retry_logged(problem)

    def _kill_without_lease(self, child: ChildProcess, lease: Lease) -> Outcome:
        """Kill the child without delay, because another worker may have its message already."""
        self._discard()
        lease.lose("its deadline passed")
        self._report(child, lease, lease.reason)
        return Abandoned(lease.reason)

    def _terminate(
        self, child: ChildProcess, message: M, lease: Lease, reason: str, outcome: Outcome
    ) -> Outcome:
        """End the child first. Then return its own last outcome, or else `outcome`."""
        child.terminate()
        own_outcome = self._wait_for_last_outcome(child, message, lease)
        exit_text = self._discard()
        self._report(child, lease, reason)
        if exit_text is None:
            return self._abandon_unkillable(lease)
        return own_outcome or outcome

    def _abandon_unkillable(self, lease: Lease) -> Outcome:
        # The child waits in the kernel, perhaps for a file server that does not respond. No
        # other worker may get the message while the child could continue, and this worker
        # must not hold it forever. So let the lease run out.
        lease.lose("its process cannot be killed")
        return Abandoned(lease.reason)

    def _wait_for_last_outcome(
        self, child: ChildProcess, message: M, lease: Lease
    ) -> Outcome | None:
        """Give the child time for its `finally` blocks. They may checkpoint or even finish."""
        until = self._clock.monotonic() + self._limits.kill_grace_seconds
        try:
            while child.is_alive and self._clock.monotonic() < until:
                child.wait(0.05)
                if (outcome := self._read_frames(child, message, lease)) is not None:
                    return outcome
        except EOFError:
            child.wait_until_dead(until - self._clock.monotonic())
        except BrokenFrame:
            return None  # the child is about to be killed anyway
        return None

    def _report(self, child: ChildProcess, lease: Lease, reason: str) -> None:
        self._events.emit(
            ChildKilled(self._queue_name, lease.message_id, lease.attempt, reason, child.pid)
        )


def _pack_result(call: Callable[[], Any]) -> bytes:
    try:
        return child_wire.pack_response(call())
    except Exception as error:  # the handler made the request, so the handler gets the error
        return child_wire.pack_response(error=error)


def _describe_invalid(error: BrokenFrame | str, when: str = "") -> str:
    return f"its process sent an invalid frame{when}: {error}"
