"""Inside a child process: one handler, one message at a time, by order of the worker.

The main thread runs the handler, so that a signal can interrupt it. A second thread is the
pulse: it says every moment that the interpreter answers, passes on whether the handler
moved, and ends everything when the lease has run out without word from the worker. The
worker may be frozen then; somebody else will have the message.
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
from holdfast.core.process.orphan_guard import end_group, end_with, leave_terminal
from holdfast.core.queue.message import AnyMessage, MessageCodec
from holdfast.core.worker import child_wire
from holdfast.core.worker.child_wire import HandlerCall
from holdfast.core.worker.context import UNKNOWN, Context, seconds_until
from holdfast.core.worker.executor import Call, caller
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.outcome_mapping import outcome_of, retry_after_error

STACKS_SIGNAL = signal.SIGQUIT  # as Java has it

_MAX_PROBLEM = 2000


def main(
    orders: Connection,
    answers: Connection,
    control: Connection,
    stacks: Connection,
    handler: bytes,
    interval: float,
) -> None:
    """What the worker starts."""
    leave_terminal()
    parent = parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with(parent.pid, parent.sentinel)
    # Both are C code and need no interpreter: they tell where a stuck one is.
    faulthandler.register(STACKS_SIGNAL, file=stacks.fileno(), all_threads=True)
    faulthandler.enable(file=stacks.fileno())
    signal.signal(signal.SIGTERM, _terminated)
    frames = Frames(orders.fileno(), answers.fileno())
    try:
        call = caller(_loaded(handler, frames))
        frames.send(child_wire.numbered(0, child_wire.READY))
        _serve(call, frames, PulseSender(control.fileno(), stacks.fileno(), interval))
    except Terminated:
        _end_by_signal()


class Terminated(BaseException):
    """SIGTERM: `finally` blocks run, then the process ends."""


def _terminated(*_: object) -> NoReturn:
    raise Terminated


def _end_by_signal() -> None:
    """Let the exit status say what it was."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _loaded(pickle_of: bytes, frames: Frames, number: int = 0) -> Any:
    """Handler or model: to load them is to import the user's code."""
    try:
        return pickle.loads(pickle_of)  # noqa: S301  # our own parent sent it
    except Terminated:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"[:_MAX_PROBLEM]
        said = child_wire.BROKEN + problem.encode(errors="replace")
        frames.send(child_wire.numbered(number, said))
        raise SystemExit(1) from None


def _serve(call: Call, frames: Frames, pulse: "PulseSender") -> None:
    pulse.start()
    codec: MessageCodec[Any] = MessageCodec(AnyMessage)
    with asyncio.Runner() as runner:
        while (frame := _next(frames)) is not None:
            number, order = child_wire.split_number(frame)
            if order[:1] == child_wire.MODEL:
                codec = MessageCodec(_loaded(order[1:], frames, number))
                continue
            work = child_wire.unpack_call(order)
            pulse.begin(work.deadline)
            ctx = ChildContext(work, number, frames, pulse)
            outcome = _attempt(call, codec, work, ctx, runner)
            pulse.end()
            frames.send(child_wire.numbered(number, child_wire.pack_outcome(outcome)))


def _next(frames: Frames) -> bytes | None:
    try:
        return frames.read()
    except EOFError:  # the worker needs us no more
        return None


def _attempt(
    call: Call,
    codec: MessageCodec[Any],
    work: HandlerCall,
    ctx: Context,
    runner: asyncio.Runner,
) -> Outcome:
    try:
        result = call(codec.decode(work.body), ctx)
        if result is not None and inspect.isawaitable(result):
            result = runner.run(_awaited(result))
    except Terminated:
        raise
    except BaseException as error:
        return retry_after_error(error)
    return outcome_of(result)


async def _awaited(work: Any) -> Any:
    return await work


class PulseSender:
    """The sign that the interpreter answers."""

    def __init__(self, control: int, stacks: int, interval: float) -> None:
        self.stopping = Event()
        self.deadline = 0.0
        self.beats = 0
        self._beats_told = 0
        self._busy = False
        self._control = control
        self._stacks = stacks
        self._interval = interval
        self._received = bytearray()
        os.set_blocking(control, False)

    def start(self) -> None:
        Thread(target=self._run, name="holdfast-pulse", daemon=True).start()

    def begin(self, deadline: float) -> None:
        self.deadline = deadline
        self._busy = True

    def end(self) -> None:
        self._busy = False

    def _run(self) -> None:
        told = poll()
        told.register(self._control, POLLIN)
        while True:
            if told.poll(self._pause() * 1000) and not self._listen():
                return  # the worker let go of us: the guard and the main thread know
            if not self._busy:
                continue
            if SYSTEM_CLOCK.monotonic() >= self.deadline:
                self._end_overdue()
            self._say()

    def _pause(self) -> float:
        if not self._busy:
            return self._interval
        left = self.deadline - SYSTEM_CLOCK.monotonic()
        return min(self._interval, max(left, 0.001))

    def _say(self) -> None:
        beats = self.beats  # a beat from here on counts for the next pulse
        with suppress(OSError):  # the worker does not listen just now: told the next time
            os.write(
                self._control,
                child_wire.PULSE if beats == self._beats_told else child_wire.MOVED,
            )
            self._beats_told = beats

    def _listen(self) -> bool:
        """Take in what the worker told; False when it is gone."""
        try:
            chunk = os.read(self._control, 4096)
        except ConnectionResetError:
            return False
        self._received += chunk
        while len(self._received) >= child_wire.CONTROL.size:
            kind, value = child_wire.CONTROL.unpack_from(self._received)
            del self._received[: child_wire.CONTROL.size]
            if kind == child_wire.DEADLINE:
                # What was sent for the work before this one must not shorten it.
                self.deadline = max(self.deadline, value)
            else:
                self.stopping.set()
        return bool(chunk)

    def _end_overdue(self) -> None:
        os.write(self._stacks, b"the lease ran out without word from the worker\n")
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        end_group()


class ChildContext(Context):
    """The context of a handler whose lease is with the worker, in another process."""

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
        """Set by `raise_if_lost` and `beat`; a loss the worker sees ends this process."""
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
        return seconds_until(self._cap_at, SYSTEM_CLOCK.monotonic())

    @property
    def checkpoint(self) -> Any:
        if self._checkpoint is UNKNOWN:
            self._checkpoint = self._ask(child_wire.LOAD) if self.fence > 1 else None
        return self._checkpoint

    def beat(self, progress: float | None = None, checkpoint: Any = None) -> None:
        self.raise_if_lost()
        self._pulse.beats += 1
        if progress is not None:
            self.progress = progress
        if checkpoint is not None:
            self._ask(child_wire.pack_save(checkpoint))

    def raise_if_lost(self) -> None:
        if self.seconds_left <= 0:
            self.lost.set()
            raise LeaseLost(f"lease of {self.message_id!r} is lost: its deadline passed")

    def _ask(self, question: bytes) -> Any:
        with self._lock:  # the handler may have threads of its own
            self._frames.send(child_wire.numbered(self._number, question))
            answer = self._frames.read()
        assert answer is not None
        return child_wire.unpack_answer(child_wire.split_number(answer)[1])
