"""The program of a worker's child process. It handles one message at a time.

The main thread runs the handler, so that a signal can interrupt it. The thread that sends
pulses reports beats. If the lease runs out without a renewal from the worker, that thread
kills the process, because the worker may be frozen and another worker will get the message.
"""

import faulthandler
import os
import pickle
from collections.abc import Callable
from functools import partial
from threading import Event, Lock
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.lease import Lease
from holdfast.process.child_main import ParentLink, PulseSender, Terminated
from holdfast.process.process_group import kill_own_group
from holdfast.queue.message import AnyMessage, MessageCodec
from holdfast.worker import child_wire
from holdfast.worker.handler import Handler
from holdfast.worker.outcome import Outcome, Retry, retry_after_error
from holdfast.worker.runner import Context, DirectExecutor


def prepare(handler: Handler, link: ParentLink, *, pulse_seconds: float) -> Callable[[], None]:
    """Return the function that handles messages until the worker closes the pipe."""
    pulse = LeasePulseSender(link, pulse_seconds)
    pulse.start()

    def make_context(message: Any, lease: Lease) -> Context:
        return Context(lease.handle, message, lease, pulse.stopping, SYSTEM_CLOCK)

    return partial(_serve, DirectExecutor(handler, make_context), link, pulse)


def _serve(executor: DirectExecutor[Any], link: ParentLink, pulse: "LeasePulseSender") -> None:
    codec: MessageCodec[Any] = MessageCodec(AnyMessage)
    try:
        while (numbered_frame := link.read()) is not None:
            number, frame = numbered_frame
            if frame[:1] == child_wire.MODEL:
                with link.report_broken(number):
                    model, parameters = pickle.loads(frame[1:])  # noqa: S301  # the worker's
                    codec = MessageCodec(model[parameters] if parameters else model)
                continue
            lease, body = child_wire.unpack_call(frame)
            lease.handle = ParentQueue(number, link)
            pulse.begin(number, lease)
            outcome = _execute(executor, codec, lease, body)
            pulse.end()
            link.send(number, child_wire.pack_outcome(outcome))
    finally:
        executor.close()


def _execute(
    executor: DirectExecutor[Any], codec: MessageCodec[Any], lease: Lease, body: bytes
) -> Outcome:
    try:
        message = codec.decode(body)
    except HoldfastError as error:
        return retry_after_error(error)
    outcome = executor.execute(message, lease)
    if isinstance(outcome, Retry) and isinstance(outcome.exception, Terminated):
        raise outcome.exception
    return outcome


class LeasePulseSender(PulseSender):
    """Sends pulses during an attempt, and kills this process when the lease runs out."""

    def __init__(self, link: ParentLink, pulse_seconds: float) -> None:
        super().__init__(link, pulse_seconds)
        self.stopping = Event()
        self._lease: Lease | None = None  # None between messages
        self._number = 0
        self._beat_sent_at = 0.0

    def begin(self, number: int, lease: Lease) -> None:
        """Send pulses for an attempt, until `end` or until its deadline."""
        self._number = number
        self._beat_sent_at = lease.last_beat_at
        self._lease = lease

    def end(self) -> None:
        """Stop sending pulses. None follows a frame that is sent after this call."""
        self._lease = None

    def compute_pause(self) -> float:
        """Return the seconds until the next pulse, or until the deadline."""
        if (lease := self._lease) is None:
            return self._pulse_seconds
        left = lease.deadline - SYSTEM_CLOCK.monotonic()
        return min(self._pulse_seconds, max(left, 0.001))

    def handle_control(self, records: bytes) -> None:
        """Note a new deadline or that the worker is stopping. Then check the deadline."""
        lease = self._lease
        for (deadline,) in child_wire.CONTROL.iter_unpack(records):
            if deadline == child_wire.STOPPING:
                self.stopping.set()
            elif lease is not None:
                # A record that was sent for an earlier attempt must not shorten this one.
                lease.deadline = max(lease.deadline, deadline)
        if lease is not None and SYSTEM_CLOCK.monotonic() >= lease.deadline:
            self._kill_overdue()

    def make_pulse(self) -> tuple[int, bytes] | None:
        """Return whether the handler beat since the last pulse. There is none between messages,
        because the worker does not read then."""
        if (lease := self._lease) is None:
            return None
        beat_at = lease.last_beat_at  # a beat after this line counts for the next pulse
        has_moved = beat_at != self._beat_sent_at
        self._beat_sent_at = beat_at
        return self._number, child_wire.pack_moved(lease.progress) if has_moved else b""

    def _kill_overdue(self) -> None:
        os.write(self._link.stacks, b"the lease ran out without a renewal from the worker\n")
        faulthandler.dump_traceback(self._link.stacks, all_threads=True)
        kill_own_group()


class ParentQueue:
    """The queue of the worker, as far as the context of an attempt uses it."""

    def __init__(self, number: int, link: ParentLink) -> None:
        self._number = number
        self._link = link
        self._lock = Lock()

    def load_checkpoint(self, message: Any) -> Any:
        """Ask the worker for the checkpoint of an earlier attempt."""
        return self._request(child_wire.LOAD)

    def save_checkpoint(self, message: Any, checkpoint: Any) -> None:
        """Have the worker save a checkpoint. Raises what its queue raises."""
        self._request(child_wire.pack_save(checkpoint))

    def _request(self, frame: bytes) -> Any:
        with self._lock:  # the handler may use several threads
            self._link.send(self._number, frame)
            response = self._link.read()
        assert response is not None
        return child_wire.unpack_response(response[1])
