"""The main program of a child process. It handles one message at a time for the worker.

The main thread runs the handler, so that a signal can interrupt it. A second thread sends
pulses. They show that the interpreter responds and whether the handler beat. If the lease runs
out without a renewal from the worker, that thread kills the process, because the worker may be
frozen and another worker will get the message.
"""

import asyncio
import faulthandler
import inspect
import os
import pickle
import signal
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from select import POLLIN, poll
from threading import Event, Lock, Thread
from typing import Any, NoReturn

from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.errors import LeaseLost
from holdfast.core.process.frames import Frames
from holdfast.core.process.orphan_guard import detach_from_terminal, kill_own_group, start_guard
from holdfast.core.queue.message import AnyMessage, MessageCodec
from holdfast.core.worker import child_wire
from holdfast.core.worker.child_wire import HandlerCall
from holdfast.core.worker.context import UNKNOWN, Context, compute_seconds_until
from holdfast.core.worker.executor import BoundHandler, bind_handler
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.outcome_mapping import retry_after_error, to_outcome

STACKS_SIGNAL = signal.SIGQUIT  # as in Java

_MAX_PROBLEM_LENGTH = 2000


def main(
    from_worker: Connection,
    to_worker: Connection,
    control: Connection,
    stacks: Connection,
    handler: bytes,
    interval: float,
) -> None:
    """Run the child process. The worker calls this in a spawned process."""
    detach_from_terminal()
    parent = parent_process()
    assert parent is not None
    assert parent.pid is not None
    start_guard(parent.pid, parent.sentinel)
    # Both are C code that needs no interpreter, so they also show where it is stuck.
    faulthandler.register(STACKS_SIGNAL, file=stacks.fileno(), all_threads=True)
    faulthandler.enable(file=stacks.fileno())
    signal.signal(signal.SIGTERM, _raise_terminated)
    frames = Frames(from_worker.fileno(), to_worker.fileno())
    try:
        call = bind_handler(_unpickle(handler, frames))
        frames.send(child_wire.add_number(0, child_wire.READY))
        _serve(call, frames, PulseSender(control.fileno(), stacks.fileno(), interval))
    except Terminated:
        _end_by_signal()


class Terminated(BaseException):
    """SIGTERM arrived. The `finally` blocks of the handler run, then the process ends."""


def _raise_terminated(*_: object) -> NoReturn:
    raise Terminated


def _end_by_signal() -> None:
    """End this process with SIGTERM, so that its exit status shows the signal."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _unpickle(pickled: bytes, frames: Frames, number: int = 0) -> Any:
    """Unpickle the handler or the model, which imports the user's code.

    If that fails, report it to the worker and exit.
    """
    try:
        return pickle.loads(pickled)  # noqa: S301  # the parent process sent it
    except Terminated:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"[:_MAX_PROBLEM_LENGTH]
        frame = child_wire.BROKEN + problem.encode(errors="replace")
        frames.send(child_wire.add_number(number, frame))
        raise SystemExit(1) from None


def _serve(call: BoundHandler, frames: Frames, pulse: "PulseSender") -> None:
    pulse.start()
    codec: MessageCodec[Any] = MessageCodec(AnyMessage)
    with asyncio.Runner() as runner:
        while (numbered_frame := _read_frame(frames)) is not None:
            number, frame = child_wire.split_number(numbered_frame)
            if frame[:1] == child_wire.MODEL:
                codec = MessageCodec(_unpickle(frame[1:], frames, number))
                continue
            work = child_wire.unpack_call(frame)
            pulse.begin(work.deadline)
            ctx = ChildContext(work, number, frames, pulse)
            outcome = _run_handler(call, codec, work, ctx, runner)
            pulse.end()
            frames.send(child_wire.add_number(number, child_wire.pack_outcome(outcome)))


def _read_frame(frames: Frames) -> bytes | None:
    try:
        return frames.read()
    except EOFError:  # the worker closed the pipe, so this process can end
        return None


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


class PulseSender:
    """Sends pulses, which show that the interpreter responds."""

    def __init__(self, control: int, stacks: int, interval: float) -> None:
        self.stopping = Event()
        self.deadline = 0.0
        self.beats = 0
        self._beats_sent = 0
        self._busy = False
        self._control = control
        self._stacks = stacks
        self._interval = interval
        self._received = bytearray()
        os.set_blocking(control, False)

    def start(self) -> None:
        """Start the thread that sends pulses."""
        Thread(target=self._run, name="holdfast-pulse", daemon=True).start()

    def begin(self, deadline: float) -> None:
        """Send pulses for an attempt, until `end` or until its deadline."""
        self.deadline = deadline
        self._busy = True

    def end(self) -> None:
        """Stop sending pulses, because the attempt is over."""
        self._busy = False

    def _run(self) -> None:
        control_poll = poll()
        control_poll.register(self._control, POLLIN)
        while True:
            if control_poll.poll(self._compute_pause() * 1000) and not self._read_control():
                return  # the worker closed the pipe; the guard and the main thread notice it
            if not self._busy:
                continue
            if SYSTEM_CLOCK.monotonic() >= self.deadline:
                self._kill_overdue()
            self._send_pulse()

    def _compute_pause(self) -> float:
        if not self._busy:
            return self._interval
        left = self.deadline - SYSTEM_CLOCK.monotonic()
        return min(self._interval, max(left, 0.001))

    def _send_pulse(self) -> None:
        beats = self.beats  # a beat after this line counts for the next pulse
        with suppress(OSError):  # the worker does not read now; the next pulse reports the beat
            os.write(
                self._control,
                child_wire.PULSE if beats == self._beats_sent else child_wire.MOVED,
            )
            self._beats_sent = beats

    def _read_control(self) -> bool:
        """Read the worker's control records. Return False if the worker closed the pipe."""
        try:
            chunk = os.read(self._control, 4096)
        except ConnectionResetError:
            return False
        self._received += chunk
        while len(self._received) >= child_wire.CONTROL.size:
            kind, value = child_wire.CONTROL.unpack_from(self._received)
            del self._received[: child_wire.CONTROL.size]
            if kind == child_wire.DEADLINE:
                # A record that was sent for an earlier attempt must not shorten this one.
                self.deadline = max(self.deadline, value)
            else:
                self.stopping.set()
        return bool(chunk)

    def _kill_overdue(self) -> None:
        os.write(self._stacks, b"the lease ran out without a renewal from the worker\n")
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        kill_own_group()


class ChildContext(Context):
    """The context of a handler whose lease the worker holds, in another process."""

    __slots__ = ("_cap_at", "_checkpoint", "_frames", "_lock", "_lost", "_number", "_pulse")

    def __init__(
        self, work: HandlerCall, number: int, frames: Frames, pulse: PulseSender
    ) -> None:
        super().__init__(work.message_id, work.attempt, work.fence, pulse.stopping)
        self._cap_at = work.cap_at
        self._number = number
        self._frames = frames
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
            self._frames.send(child_wire.add_number(self._number, frame))
            response = self._frames.read()
        assert response is not None
        return child_wire.unpack_response(child_wire.split_number(response)[1])
