"""The watchdog: handlers in processes of their own, watched by three signs.

    alive        the process exists
    answering    its interpreter sends a pulse; one stuck in C code cannot
    progressing  its handler beats

The worker owns the lease, the child only works. Where a sign fails, the child's stacks
are written down, it is terminated, then killed with all it started. Only when it is dead
the message is settled: nobody can be given work that is still being done.
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
_FRAMES_AT_ONCE = 100  # of a child that asks on and on, before its signs are looked at
_TERMINATED_FROM_OUTSIDE = ("SIGTERM", "SIGINT")


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """How long each sign may be missing."""

    stall_seconds: float | None = None
    timeout_seconds: float | None = None
    pulse_seconds: float = 30.0
    kill_grace_seconds: float = 2.0

    def tick_seconds(self, lease_seconds: float) -> float:
        """How often to look: soon enough for the shortest limit to be kept."""
        limits = (self.stall_seconds, self.timeout_seconds, self.pulse_seconds, lease_seconds)
        shortest = min(limit for limit in limits if limit is not None)
        return min(0.25, max(0.01, shortest / 10))

    def pulse_interval(self, lease_seconds: float) -> float:
        limits = (self.stall_seconds, self.pulse_seconds, lease_seconds)
        return min(1.0, *(limit / 4 for limit in limits if limit is not None))


@dataclass(slots=True)
class SignsOfLife:
    """When each sign was last seen."""

    started_at: float
    pulsed_at: float
    moved_at: float

    def missing(self, limits: WatchdogLimits, now: float) -> str | None:
        """The reason to end the work, or None while all is well."""
        timeout, stall = limits.timeout_seconds, limits.stall_seconds
        if timeout is not None and now - self.started_at >= timeout:
            return f"timed out after {timeout:g} s"
        if now - self.pulsed_at >= limits.pulse_seconds:
            return f"the worker process did not answer for {limits.pulse_seconds:g} s"
        if stall is not None and now - self.moved_at >= stall:
            return f"stalled: no beat for {stall:g} s"
        return None


class Watchdog(Executor[M]):
    """An executor with one persistent child process."""

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
        self._tick = limits.tick_seconds(lease_seconds)
        self._interval = limits.pulse_interval(lease_seconds)
        self._stopping = stopping
        self._cut_off = cancel_running
        self._clock = clock
        self._events = events
        self._child: ChildProcess | None = None

    # -- the executor's three verbs

    def prepare(self) -> bool:
        if self._child is not None:  # whether it lives is asked when there is work for it
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
        # It died while idle, or said more than its outcome: a fresh one costs no attempt.
        if self._child is not None and not self._child.idle:
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
        except OSError as error:  # from now on it does not mean "not started"
            self._discard()
            raise RuntimeError(f"the watch over a child failed: {error}") from error

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            grace = 0.0 if self._cut_off.is_set() else self._limits.kill_grace_seconds
            child.close(grace)

    def _discard(self) -> str | None:
        child, self._child = self._child, None
        return None if child is None else child.destroy()

    # -- starting

    def _is_ready(self, child: ChildProcess) -> bool:
        try:
            frame = child.read()
        except EOFError:
            child.dead_within(self._limits.kill_grace_seconds)
            raise HandlerNotFound(
                f"the worker process ended while starting ({child.how_it_died()}); see its "
                'output above, and keep `if __name__ == "__main__":` around what a script runs'
            ) from None
        except BrokenFrame as error:
            raise HandlerNotFound(_invalid(error, " while starting")) from None
        if frame not in (None, child_wire.READY):
            raise HandlerNotFound(_invalid("it is not READY", " while starting"))
        return frame is not None

    # -- watching

    def _watch(
        self, child: ChildProcess, message: M, lease: Lease, signs: SignsOfLife
    ) -> Outcome:
        told_to_stop = False
        while True:
            child.wait(self._tick)
            try:
                if (outcome := self._hear(child, message, lease)) is not None:
                    return outcome
                if not child.alive:
                    return self._hear(child, message, lease) or self._died(child, lease)
                now = self._clock.monotonic()
                self._take_pulse(child, lease, signs, now)
            except EOFError:
                return self._died(child, lease)
            except BrokenFrame as error:
                return self._distrusted(child, lease, error)
            if (outcome := self._judge(child, message, lease, signs, now)) is not None:
                return outcome
            child.tell_deadline(lease.deadline)
            if not told_to_stop and self._stopping.is_set():
                child.tell_stopping()
                told_to_stop = True

    def _hear(self, child: ChildProcess, message: M, lease: Lease) -> Outcome | None:
        """Answer what the child asks; the outcome once it has one."""
        for _ in range(_FRAMES_AT_ONCE):
            if (frame := child.read()) is None:
                break
            if frame[:1] == child_wire.OUTCOME:
                return child_wire.unpack_outcome(frame)
            child.answer(self._answer(frame, message, lease))
        return None

    def _answer(self, question: bytes, message: M, lease: Lease) -> bytes:
        ctx = self._make_context(message, lease)
        match question[:1]:
            case child_wire.LOAD if question == child_wire.LOAD:
                return _answered(lambda: ctx.checkpoint)
            case child_wire.SAVE:
                checkpoint = child_wire.unpack_save(question)
                return _answered(lambda: ctx.beat(checkpoint=checkpoint))
            case _:
                raise BrokenFrame("it is of no known kind")

    def _take_pulse(
        self, child: ChildProcess, lease: Lease, signs: SignsOfLife, now: float
    ) -> None:
        if signs_of_life := child.pulses():
            signs.pulsed_at = now
            if child_wire.MOVED in signs_of_life:
                signs.moved_at = now
                lease.beat(now)

    def _judge(
        self, child: ChildProcess, message: M, lease: Lease, signs: SignsOfLife, now: float
    ) -> Outcome | None:
        if not lease.live or now >= lease.deadline:
            return self._kill(child, lease)
        if self._cut_off.is_set():
            return self._put_down(child, message, lease, "the worker stops", GiveBack())
        if (reason := signs.missing(self._limits, now)) is not None:
            stacks = child.stacks() or "no stack: the process did not answer"
            ended = retry_logged(reason, stacks)
            return self._put_down(child, message, lease, reason, ended)
        return None

    # -- ending

    def _died(self, child: ChildProcess, lease: Lease) -> Outcome:
        child.dead_within(self._limits.kill_grace_seconds)
        last_words = child.last_words()
        if (how := self._discard()) is None:
            return self._undead(lease)
        # Those who stop a whole group of processes mean the worker.
        if how in _TERMINATED_FROM_OUTSIDE and self._clock.wait(self._stopping, 0.5):
            return GiveBack()
        return retry_logged(f"the worker process died ({how})", last_words or None)

    def _distrusted(self, child: ChildProcess, lease: Lease, error: BrokenFrame) -> Outcome:
        """Nothing it says can be believed any more, so its death is the end of the work."""
        how = self._discard()
        self._report(child, lease, _invalid(error))
        return self._undead(lease) if how is None else retry_logged(_invalid(error))

    def _kill(self, child: ChildProcess, lease: Lease) -> Outcome:
        """The lease is gone: without delay, somebody else may have started."""
        self._discard()
        lease.lose("its deadline passed")
        self._report(child, lease, lease.reason)
        return Abandoned(lease.reason)

    def _put_down(
        self, child: ChildProcess, message: M, lease: Lease, reason: str, ended: Outcome
    ) -> Outcome:
        """End the work, then say how it ended; in this order."""
        child.terminate()
        finished = self._last_words(child, message, lease)
        how = self._discard()
        self._report(child, lease, reason)
        if how is None:
            return self._undead(lease)
        return finished or ended

    def _undead(self, lease: Lease) -> Outcome:
        # Waiting in the kernel, for a dead file server perhaps. Nobody may be given the
        # work while it could go on; nor may it be held for ever.
        lease.lose("its process cannot be killed")
        return Abandoned(lease.reason)

    def _last_words(self, child: ChildProcess, message: M, lease: Lease) -> Outcome | None:
        """Time for `finally` blocks: they may save a checkpoint, or even finish."""
        until = self._clock.monotonic() + self._limits.kill_grace_seconds
        try:
            while child.alive and self._clock.monotonic() < until:
                child.wait(0.05)
                if (outcome := self._hear(child, message, lease)) is not None:
                    return outcome
        except EOFError:
            child.dead_within(until - self._clock.monotonic())
        except BrokenFrame:
            return None  # it is being ended anyway
        return None

    def _report(self, child: ChildProcess, lease: Lease, reason: str) -> None:
        self._events.emit(
            ChildKilled(self._queue_name, lease.message_id, lease.attempt, reason, child.pid)
        )


def _answered(ask: Callable[[], Any]) -> bytes:
    try:
        return child_wire.pack_answer(ask())
    except Exception as error:  # the handler asked, so the handler gets it
        return child_wire.pack_answer(error=error)


def _invalid(error: BrokenFrame | str, when: str = "") -> str:
    return f"its process sent an invalid frame{when}: {error}"
