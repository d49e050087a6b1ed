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
from math import inf
from typing import Any, Generic

from holdfast.errors import (
    ConfigError,
    HandlerNotFound,
    MalformedMessage,
    MessageTooLarge,
)
from holdfast.events import ChildKilled
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.lease import Lease
from holdfast.process.child_process import ChildProcess, ChildState
from holdfast.process.frames import PULSE, BrokenFrame, Program
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.message import M, MessageCodec
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

_OUTSIDE_SIGNALS = ("SIGTERM", "SIGINT")


@dataclass(eq=False, slots=True)
class Attempt(Generic[M]):
    """One attempt in a child. The lease has its beats."""

    number: int  # in each of its frames
    message: M
    lease: Lease
    sent_deadline: float  # the child ends itself after it
    started_at: float = inf
    outcome: Outcome | None = None  # as the child sent it
    verdict: Outcome | None = None  # what the attempt comes to if the child is ended
    was_stopping: bool = False


class Watchdog(Executor[M]):
    """An executor with one child process that it reuses for many messages.

    `limits` may be changed between two messages, but not to shorter ones than at the start.
    """

    def __init__(self, handler: bytes, limits: LivenessLimits, in_flight: InFlight[M]) -> None:
        lease_seconds = in_flight.queue.lease_seconds
        options = {"pulse_seconds": limits.compute_pulse_seconds(lease_seconds)}
        self._program = Program(
            "holdfast.worker.child_main", handler, options, imports_main=True
        )
        self.limits = limits
        self._in_flight = in_flight
        self._tick = limits.compute_tick_seconds(lease_seconds)
        self._clock = in_flight.clock
        self._child: ChildProcess | None = None
        self._codec: MessageCodec[Any] | None = None  # of the type that the child knows
        self._attempt: Attempt[M] | None = None  # None between messages
        self._number = 0

    # -- the methods of an executor

    def prepare(self) -> bool:
        """Start a child and wait until it has imported the handler."""
        child = self._child
        if child is None:
            # A child lives in real time, also if the queue's clock skips or is moved.
            child = self._child = ChildProcess(self._program, self.limits, SYSTEM_CLOCK)
            self._codec = None
        while child.state is ChildState.STARTING:
            if self._in_flight.stopping.is_set():
                return False
            child.wait(0.1)
            child.step(self._handle_frame)
        if child.state is ChildState.READY:
            return True
        self._child, exit_text = None, child.destroy()
        _raise_if_broken(child)
        raise HandlerNotFound(
            f"the worker process ended while starting ({child.reason or exit_text}); see its "
            'output above, and keep `if __name__ == "__main__":` around what a script runs'
        )

    def execute(self, message: M, lease: Lease) -> Outcome:
        """Have the child handle the message, and watch it until it ends."""
        self._check_idle_child()
        if not self.prepare():
            return GiveBack()
        assert self._child is not None
        try:
            attempt = self._attempt = self._begin(self._child, message, lease)
        except (MalformedMessage, MessageTooLarge) as error:
            return Reject(str(error), log_reason="it cannot be sent to a process")
        attempt.started_at = lease.last_beat_at = self._clock.monotonic()
        try:
            return self._watch(self._child, attempt)
        except OSError as error:  # here OSError no longer means "not started"
            self._child.destroy()
            raise RuntimeError(f"the watch over a child failed: {error}") from error
        finally:
            self._attempt = None
            if self._child.state is ChildState.GONE:
                self._child = None

    def close(self) -> None:
        """End the child, after a grace unless running work must be cancelled."""
        child, self._child = self._child, None
        if child is not None:
            if not self._in_flight.give_up.is_set():
                child.leave()
                child.wait_until_gone()
            child.destroy()

    # -- starting

    def _check_idle_child(self) -> None:
        """Replace a child that died while idle or sent more than its outcome.

        This costs no attempt.
        """
        if (child := self._child) is not None:
            child.extend_timeout(inf)  # an idle child sends no pulses
            child.step(self._handle_frame)
            if child.state is not ChildState.READY:
                child.destroy()
                self._child = None

    def _begin(self, child: ChildProcess, message: M, lease: Lease) -> Attempt[M]:
        """Have the child start work on a message.

        Raises HandlerNotFound if a child cannot import the message type, and
        MalformedMessage or MessageTooLarge if the message cannot be sent. In these cases
        nothing was started.
        """
        self._number += 1
        if self._codec is None or self._codec.model is not type(message):
            self._codec = MessageCodec(type(message))
            child.frames.send(self._number, _pack_model(type(message)))
            child.is_loading = True
        attempt = Attempt(self._number, message, lease, lease.deadline)
        child.frames.send(
            self._number, child_wire.pack_call(lease, self._codec.encode(message))
        )
        return attempt

    # -- watching

    def _watch(self, child: ChildProcess, attempt: Attempt[M]) -> Outcome:
        while child.state is not ChildState.GONE:
            child.wait(self._tick)
            child.step(self._handle_frame)
            if attempt.outcome is not None:
                if child.state is ChildState.READY:
                    return attempt.outcome
                child.end()  # it was asked to end, and this was its last word
            self._check_signs(child, attempt)
        return self._judge(child, attempt)

    def _handle_frame(self, number: int, frame: bytes) -> None:
        """Note pulses and the outcome, and respond to requests."""
        attempt = self._attempt
        if attempt is None or number != attempt.number or attempt.outcome is not None:
            raise BrokenFrame("it is not about this attempt")
        match frame[:1]:
            case child_wire.OUTCOME:
                attempt.outcome = child_wire.unpack_outcome(frame)
            case _ if frame == PULSE:
                pass
            case _ if frame[:1] == PULSE:
                progress = child_wire.unpack_moved(frame[1:])
                attempt.lease.beat(self._clock.monotonic(), progress)
            case _:
                self._respond(attempt, frame)

    def _respond(self, attempt: Attempt[M], request: bytes) -> None:
        """Respond to a request. Raises BrokenFrame if the child does not read its responses.

        A child makes one request at a time, so it has read all earlier responses. Unsent
        bytes show that it has not, after no more requests than fill its pipe.
        """
        assert self._child is not None
        if self._child.frames.unsent_bytes:
            raise BrokenFrame("it sends requests without reading the responses")
        ctx = self._in_flight.make_context(attempt.message, attempt.lease)
        match request[:1]:
            case child_wire.LOAD if request == child_wire.LOAD:
                response = _pack_result(lambda: ctx.checkpoint)
            case child_wire.SAVE:
                checkpoint = child_wire.unpack_save(request)
                response = _pack_result(lambda: ctx.beat(checkpoint=checkpoint))
            case _:
                raise BrokenFrame("it is of no known kind")
        self._child.frames.send(attempt.number, response)

    def _check_signs(self, child: ChildProcess, attempt: Attempt[M]) -> None:
        """End the child if a sign is missing, or else tell it what has changed."""
        now, lease = self._clock.monotonic(), attempt.lease
        if not lease.live or now >= lease.deadline:
            # Without delay, because another worker may have the message already.
            lease.lose("its deadline passed")
            attempt.verdict = Abandoned(lease.reason)
            child.end(lease.reason)
        elif child.state is not ChildState.READY:
            pass
        elif self._in_flight.give_up.is_set():
            attempt.verdict = GiveBack()
            child.terminate("the worker stops")
        elif reason := self.limits.find_missing(now, attempt.started_at, lease.last_beat_at):
            child.terminate(reason)
        else:
            self._send_changes(child, attempt)

    def _send_changes(self, child: ChildProcess, attempt: Attempt[M]) -> None:
        if attempt.sent_deadline != attempt.lease.deadline:
            attempt.sent_deadline = attempt.lease.deadline
            child.send_control(child_wire.CONTROL.pack(attempt.sent_deadline))
        if not attempt.was_stopping and self._in_flight.stopping.is_set():
            attempt.was_stopping = True
            child.send_control(child_wire.CONTROL.pack(child_wire.STOPPING))

    def _judge(self, child: ChildProcess, attempt: Attempt[M]) -> Outcome:
        """Return what an attempt comes to whose child is gone."""
        lease, exit_text = attempt.lease, child.poll_exit()
        _raise_if_broken(child)
        if child.reason is not None:
            self._in_flight.events.emit(
                ChildKilled(
                    self._in_flight.queue.name,
                    lease.message_id,
                    lease.attempt,
                    child.reason,
                    child.pid,
                )
            )
        if exit_text is None:
            # The child waits in the kernel, perhaps for a file server that does not respond.
            # No other worker may get the message while the child could continue, and this
            # worker must not hold it forever. So let the lease run out.
            lease.lose("its process cannot be killed")
            return Abandoned(lease.reason)
        if isinstance(attempt.verdict, Abandoned):
            return attempt.verdict
        if (outcome := attempt.outcome or attempt.verdict) is not None:
            return outcome
        stacks = strip_own_frames(child.stacks) or None
        if child.reason is not None:
            return retry_logged(child.reason, stacks)
        # A process that signals a whole process group wants to stop the worker.
        if exit_text in _OUTSIDE_SIGNALS and self._clock.wait(self._in_flight.stopping, 0.5):
            return GiveBack()
        return retry_logged(f"the worker process died ({exit_text})", stacks)


def _raise_if_broken(child: ChildProcess) -> None:
    if child.broken is not None:
        problem = ": ".join(child.broken)
        raise HandlerNotFound(f"a worker process cannot load the handler: {problem}")


def _pack_result(call: Callable[[], Any]) -> bytes:
    try:
        return child_wire.pack_response(call())
    except Exception as error:  # the handler made the request, so the handler gets the error
        return child_wire.pack_response(error=error)


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
