"""The program of a worker's child process. It handles one message at a time.

The main thread runs the handler, so that a signal can interrupt it. The thread that sends
pulses reports beats. If the lease runs out without a renewal from the worker, that thread
kills the process, because the worker may be frozen and another worker will get the message.
"""

import asyncio
import faulthandler
import inspect
import os
import pickle
from collections.abc import Callable
from functools import partial
from threading import Event, Lock
from typing import Any

from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.errors import LeaseLost
from holdfast.core.process.child_main import ParentLink, PulseSender, Terminated
from holdfast.core.process.orphan_guard import kill_own_group
from holdfast.core.queue.message import AnyMessage, MessageCodec
from holdfast.core.worker import child_wire
from holdfast.core.worker.child_wire import HandlerCall
from holdfast.core.worker.context import UNKNOWN, Context, compute_seconds_until
from holdfast.core.worker.executor import BoundHandler, bind_handler
from holdfast.core.worker.handler import Handler
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.outcome_mapping import retry_after_error, to_outcome


def prepare(handler: Handler, link: ParentLink, *, pulse_seconds: float) -> Callable[[], None]:
    """Return the function that handles messages until the worker closes the pipe."""
    pulse = LeasePulseSender(link, pulse_seconds)
    pulse.start()
    return partial(_serve, bind_handler(handler), link, pulse)


def _serve(call: BoundHandler, link: ParentLink, pulse: "LeasePulseSender") -> None:
    codec: MessageCodec[Any] = MessageCodec(AnyMessage)
    with asyncio.Runner() as runner:
        while (numbered_frame := link.read()) is not None:
            number, frame = numbered_frame
            if frame[:1] == child_wire.MODEL:
                with link.report_broken(number):
                    codec = MessageCodec(pickle.loads(frame[1:]))  # noqa: S301  # the worker's
                continue
            work = child_wire.unpack_call(frame)
            pulse.begin(number, work.deadline)
            ctx = ChildContext(work, number, link, pulse)
            outcome = _run_handler(call, codec, work, ctx, runner)
            pulse.end()
            link.send(number, child_wire.pack_outcome(outcome))


def _run_handler(
    call: BoundHandler,
    codec: MessageCodec[Any],
    work: HandlerCall,
    ctx: Context,
    runner: asyncio.Runner,
) -> Outcome:
    try:
        result = call(codec.decode(work.body), ctx)
        if result is not None and inspect.isawaitable(result):
            result = runner.run(_await(result))
    except Terminated:
        raise
    except BaseException as error:
        return retry_after_error(error)
    return to_outcome(result)


async def _await(work: Any) -> Any:
    return await work


class LeasePulseSender(PulseSender):
    """Sends pulses during an attempt, and kills this process when the lease runs out."""

    def __init__(self, link: ParentLink, pulse_seconds: float) -> None:
        super().__init__(link, pulse_seconds)
        self.stopping = Event()
        self.deadline = 0.0
        self.beats = 0
        self._beats_sent = 0
        self._number = 0
        self._busy = False

    def begin(self, number: int, deadline: float) -> None:
        """Send pulses for an attempt, until `end` or until its deadline."""
        self._number = number
        self.deadline = deadline
        self._busy = True

    def end(self) -> None:
        """Stop sending pulses. None follows a frame that is sent after this call."""
        self._busy = False

    def compute_pause(self) -> float:
        """Return the seconds until the next pulse, or until the deadline."""
        if not self._busy:
            return self._pulse_seconds
        left = self.deadline - SYSTEM_CLOCK.monotonic()
        return min(self._pulse_seconds, max(left, 0.001))

    def handle_control(self, records: bytes) -> None:
        """Note a new deadline or that the worker is stopping. Then check the deadline."""
        for (deadline,) in child_wire.CONTROL.iter_unpack(records):
            # A record that was sent for an earlier attempt must not shorten this one.
            self.deadline = max(self.deadline, deadline)
            if deadline == child_wire.STOPPING:
                self.stopping.set()
        if self._busy and SYSTEM_CLOCK.monotonic() >= self.deadline:
            self._kill_overdue()

    def make_pulse(self) -> tuple[int, bytes] | None:
        """Return whether the handler beat since the last pulse. There is none between messages,
        because the worker does not read then."""
        if not self._busy:
            return None
        beats = self.beats  # a beat after this line counts for the next pulse
        moved = child_wire.MOVED if beats != self._beats_sent else b""
        self._beats_sent = beats
        return self._number, moved

    def _kill_overdue(self) -> None:
        os.write(self._link.stacks, b"the lease ran out without a renewal from the worker\n")
        faulthandler.dump_traceback(self._link.stacks, all_threads=True)
        kill_own_group()


class ChildContext(Context):
    """The context of a handler whose lease the worker holds, in another process."""

    __slots__ = ("_cap_at", "_checkpoint", "_link", "_lock", "_lost", "_number", "_pulse")

    def __init__(
        self, work: HandlerCall, number: int, link: ParentLink, pulse: LeasePulseSender
    ) -> None:
        super().__init__(work.message_id, work.attempt, work.fence, pulse.stopping)
        self._cap_at = work.cap_at
        self._number = number
        self._link = link
        self._pulse = pulse
        self._lock = Lock()
        self._lost: Event | None = None
        self._checkpoint: Any = UNKNOWN

    @property
    def lost(self) -> Event:
        """An event that `raise_if_lost` and `beat` set. If the worker notices a loss first, it
        kills this process."""
        if self._lost is None:
            self._lost = Event()
        return self._lost

    @property
    def deadline(self) -> float:
        return self._pulse.deadline

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._pulse.deadline - SYSTEM_CLOCK.monotonic())

    @property
    def max_seconds_left(self) -> float:
        return compute_seconds_until(self._cap_at, SYSTEM_CLOCK.monotonic())

    @property
    def checkpoint(self) -> Any:
        if self._checkpoint is UNKNOWN:
            self._checkpoint = self._request(child_wire.LOAD) if self.fence > 1 else None
        return self._checkpoint

    def beat(self, progress: float | None = None, checkpoint: Any = None) -> None:
        self.raise_if_lost()
        self._pulse.beats += 1
        if progress is not None:
            self.progress = progress
        if checkpoint is not None:
            self._request(child_wire.pack_save(checkpoint))

    def raise_if_lost(self) -> None:
        if self.seconds_left <= 0:
            self.lost.set()
            raise LeaseLost(f"lease of {self.message_id!r} is lost: its deadline passed")

    def _request(self, frame: bytes) -> Any:
        with self._lock:  # the handler may use several threads
            self._link.send(self._number, frame)
            response = self._link.read()
        assert response is not None
        return child_wire.unpack_response(response[1])
