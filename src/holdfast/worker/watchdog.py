"""The watchdog runs a handler in a child process and watches three signs of life.

    alive        the process exists
    responding   its interpreter sends a pulse or a request, which it cannot while stuck in
                 C code
    progressing  its handler beats

The worker holds the lease and the child only works. If a sign is missing, the watchdog
records the child's stacks, terminates the child, and then kills it with everything it
started. The message is settled only after the child is dead, so that no other worker gets
work that is still being done.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from holdfast.errors import (
    ConfigError,
    HandlerNotFound,
    MalformedMessage,
    MessageTooLarge,
)
from holdfast.events import ChildKilled
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.lease import Lease
from holdfast.process.child_process import ChildProcess
from holdfast.process.frames import BROKEN, PULSE, READY, BrokenFrame, Program, unpack_broken
from holdfast.process.liveness import START_TIMEOUT_SECONDS, LivenessLimits
from holdfast.queue.message import M, MessageCodec, QueueMessage
from holdfast.worker import child_wire
from holdfast.worker.handler import get_handler_name
from holdfast.worker.outcome import (
    Abandoned,
    GiveBack,
    Outcome,
    Reject,
    retry_logged,
    strip_own_frames,
)
from holdfast.worker.runner import Executor
from holdfast.worker.settle import InFlight

# For stack dumps to be written, and for the kernel to end killed processes.
EXIT_TIMEOUT_SECONDS = 15.0

_PROGRAM = "holdfast.worker.child_main"
_MAX_FRAMES_AT_ONCE = 100  # of a child that never stops asking, before its signs are checked
_OUTSIDE_SIGNALS = ("SIGTERM", "SIGINT")


class HandlerProcess(ChildProcess):
    """A child process with the worker's handler."""

    def __init__(self, handler: bytes, pulse_seconds: float, clock: Clock) -> None:
        options = {"pulse_seconds": pulse_seconds}
        super().__init__(Program(_PROGRAM, handler, options, imports_main=True), clock)
        self._codec: MessageCodec[Any] | None = None
        self._number = 0  # of the attempt, in each of its frames
        self._loading = True  # the child imports user code and may report that it cannot
        self._deadline = 0.0

    def begin(self, message: QueueMessage, lease: Lease) -> None:
        """Have the child start work on a message.

        Raises HandlerNotFound if a child cannot import the message type, and
        MalformedMessage or MessageTooLarge if the message cannot be sent. In these cases
        nothing was started.
        """
        self._number += 1
        if self._codec is None or self._codec.model is not type(message):
            self._codec = MessageCodec(type(message))
            self.send(self._number, _pack_model(type(message)))
            self._loading = True
        body = self._codec.encode(message)
        self._deadline = lease.deadline
        self.send(self._number, child_wire.pack_call(lease, body))

    def read_frame(self) -> bytes | None:
        """Return the next frame of the attempt, or None if there is none yet.

        Raises EOFError if the child closed its pipe, BrokenFrame if the frame belongs to
        another attempt, and HandlerNotFound if the child cannot load the user's code.
        """
        if (numbered_frame := self.read()) is None:
            return None
        number, frame = numbered_frame
        if number != self._number:
            raise BrokenFrame("it is not about this attempt")
        if self._loading and frame[:1] == BROKEN:
            problem = ": ".join(unpack_broken(frame))
            raise HandlerNotFound(f"a worker process cannot load the handler: {problem}")
        self._loading = False
        return frame

    def respond(self, frame: bytes) -> None:
        """Send a response. Raises BrokenFrame if the child does not read its responses.

        A child makes one request at a time, so it has read all earlier responses. Unsent
        bytes show that it has not, after no more requests than fill its pipe.
        """
        if self.unsent_bytes:
            raise BrokenFrame("it sends requests without reading the responses")
        self.send(self._number, frame)

    def send_deadline(self, deadline: float) -> None:
        """Send the deadline if it changed, because the child ends itself after its deadline."""
        if deadline != self._deadline:
            self._deadline = deadline
            self.send_control(child_wire.CONTROL.pack(deadline))

    def send_stopping(self) -> None:
        """Notify the child that the worker is stopping."""
        self.send_control(child_wire.CONTROL.pack(child_wire.STOPPING))

    @property
    def is_idle(self) -> bool:
        """Whether it is alive and sent nothing after its last outcome. Use between messages."""
        try:
            return self.poll_exit() is None and self.read() is None
        except (EOFError, BrokenFrame):
            return False


@dataclass(slots=True)
class Watch(Generic[M]):
    """One attempt in a child. The lease has its beats."""

    child: HandlerProcess
    message: M
    lease: Lease
    started_at: float
    last_pulse_at: float


class Watchdog(Executor[M]):
    """An executor with one child process that it reuses for many messages.

    `limits` may be changed between two messages, but not to shorter ones than at the start.
    """

    def __init__(self, handler: bytes, limits: LivenessLimits, in_flight: InFlight[M]) -> None:
        lease_seconds = in_flight.queue.lease_seconds
        self._handler = handler
        self.limits = limits
        self._in_flight = in_flight
        self._tick = limits.compute_tick_seconds(lease_seconds)
        self._interval = limits.compute_pulse_seconds(lease_seconds)
        self._clock = in_flight.clock
        self._child: HandlerProcess | None = None

    # -- the methods of an executor

    def prepare(self) -> bool:
        """Start a child and wait until it has imported the handler."""
        if self._child is not None:  # `execute` checks whether it is alive
            return True
        child = self._child = HandlerProcess(self._handler, self._interval, self._clock)
        # A child starts in real time, also if the queue's clock skips or is moved meanwhile.
        until = SYSTEM_CLOCK.monotonic() + START_TIMEOUT_SECONDS
        while SYSTEM_CLOCK.monotonic() < until and not self._in_flight.stopping.is_set():
            child.wait(0.1)
            if self._is_ready(child):
                return True
        if self._in_flight.stopping.is_set():
            return False
        raise HandlerNotFound(
            f"the handler was not imported within {START_TIMEOUT_SECONDS:g} s"
        )

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
        now = lease.last_beat_at = self._clock.monotonic()  # the child may have taken long
        watch = Watch(self._child, message, lease, now, now)
        try:
            return self._watch(watch)
        except OSError as error:  # here OSError no longer means "not started"
            self._discard()
            raise RuntimeError(f"the watch over a child failed: {error}") from error

    def close(self) -> None:
        """End the child, after a grace unless running work must be cancelled."""
        child, self._child = self._child, None
        if child is not None:
            grace = 0.0 if self._in_flight.give_up.is_set() else self.limits.kill_grace_seconds
            child.close_commands()
            child.wait_until_dead(grace)
            child.destroy()

    def _discard(self) -> str | None:
        child, self._child = self._child, None
        return None if child is None else child.destroy()

    # -- starting

    def _is_ready(self, child: HandlerProcess) -> bool:
        try:
            frame = child.read_frame()
        except EOFError:
            exit_text = child.wait_until_dead(self.limits.kill_grace_seconds) or "not yet"
            raise HandlerNotFound(
                f"the worker process ended while starting ({exit_text}); see its "
                'output above, and keep `if __name__ == "__main__":` around what a script runs'
            ) from None
        except BrokenFrame as error:
            raise HandlerNotFound(_describe_invalid(error, " while starting")) from None
        if frame not in (None, READY):
            raise HandlerNotFound(_describe_invalid("it is not READY", " while starting"))
        return frame is not None

    # -- watching

    def _watch(self, watch: Watch[M]) -> Outcome:
        was_stopping = False
        while True:
            watch.child.wait(self._tick)
            try:
                outcome = self._read_frames(watch)
                if outcome is None and watch.child.poll_exit() is not None:
                    outcome = self._read_frames(watch) or self._handle_death(watch)
            except EOFError:
                return self._handle_death(watch)
            except BrokenFrame as error:
                # Kill the child, because no later frame of it can be trusted.
                reason = _describe_invalid(error)
                return self._kill(watch, reason, retry_logged(reason))
            if outcome is not None or (outcome := self._check_signs(watch)) is not None:
                return outcome
            watch.child.send_deadline(watch.lease.deadline)
            if not was_stopping and self._in_flight.stopping.is_set():
                watch.child.send_stopping()
                was_stopping = True

    def _read_frames(self, watch: Watch[M]) -> Outcome | None:
        """Note pulses and respond to requests. Return the outcome when the child sends one."""
        for _ in range(_MAX_FRAMES_AT_ONCE):
            if (frame := watch.child.read_frame()) is None:
                break
            watch.last_pulse_at = self._clock.monotonic()  # every frame shows life
            match frame[:1]:
                case child_wire.OUTCOME:
                    return child_wire.unpack_outcome(frame)
                case _ if frame == PULSE:
                    pass
                case _ if frame[:1] == PULSE:
                    progress = child_wire.unpack_moved(frame[1:])
                    watch.lease.beat(watch.last_pulse_at, progress)
                case _:
                    watch.child.respond(self._handle_request(frame, watch))
        return None

    def _handle_request(self, request: bytes, watch: Watch[M]) -> bytes:
        ctx = self._in_flight.make_context(watch.message, watch.lease)
        match request[:1]:
            case child_wire.LOAD if request == child_wire.LOAD:
                return _pack_result(lambda: ctx.checkpoint)
            case child_wire.SAVE:
                checkpoint = child_wire.unpack_save(request)
                return _pack_result(lambda: ctx.beat(checkpoint=checkpoint))
            case _:
                raise BrokenFrame("it is of no known kind")

    def _check_signs(self, watch: Watch[M]) -> Outcome | None:
        now = self._clock.monotonic()
        if not watch.lease.live or now >= watch.lease.deadline:
            return self._kill_without_lease(watch)
        if self._in_flight.give_up.is_set():
            return self._terminate(watch, "the worker stops", GiveBack())
        reason = self.limits.find_missing(
            now, watch.started_at, watch.lease.last_beat_at, watch.last_pulse_at
        )
        if reason is not None:
            stacks = strip_own_frames(watch.child.dump_stacks())
            stacks = stacks or "no stack: the process did not answer"
            return self._terminate(watch, reason, retry_logged(reason, stacks))
        return None

    # -- ending

    def _handle_death(self, watch: Watch[M]) -> Outcome:
        watch.child.wait_until_dead(self.limits.kill_grace_seconds)
        stacks = strip_own_frames(watch.child.read_stacks())
        if (exit_text := self._discard()) is None:
            return self._abandon_unkillable(watch.lease)
        # A process that signals a whole process group wants to stop the worker.
        if exit_text in _OUTSIDE_SIGNALS and self._clock.wait(self._in_flight.stopping, 0.5):
            return GiveBack()
        return retry_logged(f"the worker process died ({exit_text})", stacks or None)

    def _kill_without_lease(self, watch: Watch[M]) -> Outcome:
        """Kill the child without delay, because another worker may have its message already."""
        self._discard()
        watch.lease.lose("its deadline passed")
        self._report(watch, watch.lease.reason)
        return Abandoned(watch.lease.reason)

    def _terminate(self, watch: Watch[M], reason: str, outcome: Outcome) -> Outcome:
        """End the child first. Then return its own last outcome, or else `outcome`."""
        watch.child.terminate()
        return self._kill(watch, reason, self._wait_for_last_outcome(watch) or outcome)

    def _kill(self, watch: Watch[M], reason: str, outcome: Outcome) -> Outcome:
        """Return the outcome after the child is dead."""
        exit_text = self._discard()
        self._report(watch, reason)
        return self._abandon_unkillable(watch.lease) if exit_text is None else outcome

    def _abandon_unkillable(self, lease: Lease) -> Outcome:
        # The child waits in the kernel, perhaps for a file server that does not respond. No
        # other worker may get the message while the child could continue, and this worker
        # must not hold it forever. So let the lease run out.
        lease.lose("its process cannot be killed")
        return Abandoned(lease.reason)

    def _wait_for_last_outcome(self, watch: Watch[M]) -> Outcome | None:
        """Give the child time for its `finally` blocks. They may checkpoint or even finish."""
        child = watch.child
        until = self._clock.monotonic() + self.limits.kill_grace_seconds
        try:
            while child.poll_exit() is None and self._clock.monotonic() < until:
                child.wait(0.05)
                if (outcome := self._read_frames(watch)) is not None:
                    return outcome
        except EOFError:
            child.wait_until_dead(until - self._clock.monotonic())
        except BrokenFrame:
            return None  # the child is about to be killed anyway
        return None

    def _report(self, watch: Watch[M], reason: str) -> None:
        queue_name, lease = self._in_flight.queue.name, watch.lease
        self._in_flight.events.emit(
            ChildKilled(queue_name, lease.message_id, lease.attempt, reason, watch.child.pid)
        )


def _pack_result(call: Callable[[], Any]) -> bytes:
    try:
        return child_wire.pack_response(call())
    except Exception as error:  # the handler made the request, so the handler gets the error
        return child_wire.pack_response(error=error)


def _describe_invalid(error: BrokenFrame | str, when: str = "") -> str:
    return f"its process sent an invalid frame{when}: {error}"


def pickle_handler(handler: Callable[..., Any]) -> bytes:
    """Pickle the handler by its name. Raises ConfigError if a child could not import it."""
    try:
        return pickle.dumps(handler)
    except Exception as error:  # pickling runs code of the object
        raise ConfigError(
            f"{get_handler_name(handler)} cannot run in a process of its own ({error}): use a "
            "function at the top of an importable module"
        ) from None


def _pack_model(model: type) -> bytes:
    try:
        generic = getattr(model, "__pydantic_generic_metadata__", {})
        # A Message[Enrich] was made at run time, so its name cannot be imported.
        parts = (generic["origin"], generic["args"]) if generic.get("origin") else (model, ())
        return child_wire.MODEL + pickle.dumps(parts)
    except Exception as error:  # pickling runs code of the model
        raise HandlerNotFound(
            f"{model.__name__} cannot reach a process of its own ({error}): define it at "
            "the top of an importable module"
        ) from None
