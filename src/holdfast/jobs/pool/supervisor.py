"""The workers of a pool and one pass over them: listen, judge, bury, replace, assign.

Everything in here runs in the pool's thread and never waits for a worker.

    a worker        what becomes of its tasks
    says so         finished, as it says
    ends in any     done again, alone on a worker, if attempts are left; else failed
    way             with WorkerDied or TaskTimedOut
    the pool stops  finished in time, or returned
"""

import logging
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import assert_never

from holdfast.core.clock import Clock
from holdfast.core.events import Events
from holdfast.jobs.events import PoolWorkerEnded, PoolWorkerStarted, TaskRetried
from holdfast.jobs.pool import wire
from holdfast.jobs.pool.process import WorkerProcess
from holdfast.jobs.pool.safe_source import SafeTaskSource
from holdfast.jobs.pool.worker import (
    PoolLimits,
    PoolWorker,
    RunningTask,
    TaskAttempt,
    WorkerState,
)
from holdfast.jobs.pool.worker_slot import WorkerSlot

GLANCE_SECONDS = 1.0  # a pass at least that often
_ENDING_SECONDS = 0.005  # while a worker is ending
_STOPPING_SECONDS = 0.02
_FRAMES_AT_ONCE = 100  # of one worker, before the others have their turn

_log = logging.getLogger("holdfast")


class Supervisor:
    """`seats` may be looked at from any thread; all else is for the pool's thread."""

    def __init__(
        self,
        hire: Callable[[], WorkerProcess],
        source: SafeTaskSource,
        *,
        size: int,
        slots: int,
        max_attempts: int,
        limits: PoolLimits,
        events: Events,
        clock: Clock,
    ) -> None:
        self.seats = tuple(WorkerSlot() for _ in range(size))
        self.failure: str | None = None  # why the pool cannot start
        self._hire = hire
        self._source = source
        self._slots = slots
        self._max_attempts = max_attempts
        self._limits = limits
        self._events = events
        self._clock = clock
        self._again: deque[TaskAttempt] = deque()
        self._nonces = count(1)
        self._stop_at: float | None = None
        self._looked_at = clock.monotonic()
        self._asked_at = self._looked_at

    # -- what the pool asks

    @property
    def workers(self) -> list[PoolWorker]:
        found = [seat.worker for seat in self.seats]  # each looked at once: any thread may ask
        return [worker for worker in found if worker is not None]

    @property
    def complete(self) -> bool:
        """Whether every seat had a worker that was ready."""
        return all(seat.begun for seat in self.seats)

    @property
    def ended(self) -> bool:
        return self._stop_at is not None and not self.workers

    def cancel(self, job_id: str) -> None:
        """What runs of it is asked to stop; what waits for another attempt goes back."""
        for worker in self.workers:
            worker.cancel(job_id)
            worker.ask_again_to_cancel()
        for attempt in [one for one in self._again if one.assignment.job_id == job_id]:
            self._again.remove(attempt)
            self._source.returned(attempt.assignment)

    def stop(self, drain_seconds: float) -> None:
        """Take no more tasks; what runs has that long. Less than before is less."""
        stop_at = self._clock.monotonic() + drain_seconds
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)

    def tick(self) -> float:
        """One pass. How long may be waited for news before the next, in seconds."""
        now = self._clock.monotonic()
        self._forgive(now)
        for worker in self.workers:
            self._listen(worker, now)
            self._judge(worker, now)
        for seat in self.seats:
            self._bury(seat, now)
        if self._stop_at is None:
            self._fill(now)
            self._assign(now)
        else:
            self._wind_down(now, self._stop_at)
        self._remind(now)
        return self._pause(now)

    # -- listening and judging

    def _forgive(self, now: float) -> None:
        """A pass is due every second. Was it longer, we were kept from looking: by a suspended
        machine, a debugger, a stop. Workers were perhaps kept from telling, then."""
        unseen = now - self._looked_at - 2 * GLANCE_SECONDS
        self._looked_at = now
        if unseen > 0:
            for worker in self.workers:
                worker.forgive(unseen)

    def _listen(self, worker: PoolWorker, now: float) -> None:
        if worker.garbled:
            return
        try:
            for _ in range(_FRAMES_AT_ONCE):
                if (frame := worker.process.read()) is None:
                    break
                worker.heard_at = now
                self._take_in(worker, wire.unpack_said(frame), now)
            worker.process.flush()
        except EOFError:
            worker.end(None, now)  # it is dying; we shall see of what
        except wire.BrokenFrame:
            worker.garbled = True
            worker.end("sent what is no message", now)

    def _take_in(self, worker: PoolWorker, said: wire.Said, now: float) -> None:
        match said:
            case wire.WorkerReady():
                worker.ready(now)
            case wire.WorkerBroken(code, reason):
                self._broken(worker, code, reason, now)
            case wire.WorkerPulse():
                worker.pulsed(said)
            case wire.TaskReport(nonce):
                # Any other nonce is an answer to what was given away: not aboard any more.
                if (run := worker.aboard.pop(nonce, None)) is not None:
                    worker.proved = True
                    self._source.completed(run, said)
            case _:
                assert_never(said)

    def _broken(self, worker: PoolWorker, code: str, reason: str, now: float) -> None:
        """Before the start is through it is the pool that is broken; later a successor may
        have more luck, when the deployment that ran into it is over."""
        worker.end(f"the work cannot be made: {code}", now)
        if not self.complete:
            self.failure = f"the work cannot be made: {code}: {reason}"

    def _judge(self, worker: PoolWorker, now: float) -> None:
        if worker.state is not WorkerState.ENDING and (why := worker.wrong(self._limits, now)):
            worker.end(why, now)

    # -- the end of a worker

    def _bury(self, seat: WorkerSlot, now: float) -> None:
        worker = seat.worker
        if worker is None or worker.state is not WorkerState.ENDING or not worker.gone(now):
            return
        self._last_words(worker, now)
        worker.process.let_go()
        seat.vacate(now)
        self._give_up_start(seat, worker.reason)
        if self._stop_at is None:
            self._events.emit(PoolWorkerEnded(worker.process.pid, worker.reason))
        self._clear(worker)

    def _last_words(self, worker: PoolWorker, now: float) -> None:
        """What it finished before its end is finished; half a message is none."""
        if worker.garbled:
            return
        try:
            while (frame := worker.process.read()) is not None:
                self._take_in(worker, wire.unpack_said(frame), now)
        except (EOFError, wire.BrokenFrame):
            return

    def _give_up_start(self, seat: WorkerSlot, reason: str) -> None:
        if seat.hopeless and self.failure is None:
            self.failure = f"worker processes end before they begin: {reason}"

    def _clear(self, worker: PoolWorker) -> None:
        runs = list(worker.aboard.values())
        worker.aboard.clear()
        for run in runs:
            self._unfinished(run, len(runs) == 1, worker.reason)

    def _unfinished(self, run: RunningTask, alone: bool, reason: str) -> None:
        """It is blamed for the end when nobody else can be."""
        task, number = run.attempt.assignment, run.attempt.number
        if run.cancelled or self._stop_at is not None:
            self._source.returned(task)
        elif (alone or run.overdue) and number >= self._max_attempts:
            code = "TaskTimedOut" if run.overdue else "WorkerDied"
            self._source.failed(
                task, code, f"given up after attempt {number}; the worker: {reason}"
            )
        else:
            self._again.append(TaskAttempt(task, number + 1, suspect=True))
            self._events.emit(TaskRetried(task.job_id, task.task_id, number + 1, reason))

    # -- workers and tasks to work on

    def _fill(self, now: float) -> None:
        for seat in self.seats:
            if seat.worker is None and now >= seat.not_before:
                self._seat_worker(seat, now)

    def _seat_worker(self, seat: WorkerSlot, now: float) -> None:
        try:
            process = self._hire()
        except OSError as error:  # no memory, no process number, no descriptor left
            _log.warning("no worker process can be started: %s", error)
            seat.put_off(now)
            self._give_up_start(seat, str(error))
            return
        seat.worker = PoolWorker(process, self._slots, now, now, now)
        self._events.emit(PoolWorkerStarted(process.pid))

    def _assign(self, now: float) -> None:
        # Suspects have the empty workers. There is one for them by and by: each came from
        # a worker that ended, and its successor is empty until it took a suspect.
        while self._again and (worker := self._idle()):
            self._give(worker, self._again.popleft(), now)
        while (worker := self._least_busy()) and (task := self._source.take()):
            self._give(worker, TaskAttempt(task), now)

    def _idle(self) -> PoolWorker | None:
        return next((worker for worker in self.workers if worker.empty), None)

    def _least_busy(self) -> PoolWorker | None:
        able = [worker for worker in self.workers if worker.has_room]
        return min(able, key=lambda worker: len(worker.aboard), default=None)

    def _give(self, worker: PoolWorker, attempt: TaskAttempt, now: float) -> None:
        try:
            worker.give(attempt, next(self._nonces), now)
        except (TypeError, ValueError, RecursionError):
            # Without its text: that quotes the payload.
            problem = "the task is not plain data, or larger than 2 MiB"
            self._source.failed(attempt.assignment, "InvalidTask", problem)

    def _remind(self, now: float) -> None:
        if now - self._asked_at >= GLANCE_SECONDS:
            self._asked_at = now
            for worker in self.workers:
                worker.ask_again_to_cancel()

    # -- stopping

    def _wind_down(self, now: float, stop_at: float) -> None:
        while self._again:
            self._source.returned(self._again.popleft().assignment)
        for worker in self.workers:
            if worker.empty:
                worker.leave(now)
            elif worker.state is WorkerState.STARTING or (worker.aboard and now >= stop_at):
                worker.end("the pool stops", now)

    def _pause(self, now: float) -> float:
        if any(worker.state is WorkerState.ENDING for worker in self.workers):
            return _ENDING_SECONDS
        if self._stop_at is not None:
            return _STOPPING_SECONDS
        due = [seat.not_before - now for seat in self.seats if seat.worker is None]
        return max(0.0, min([GLANCE_SECONDS, *due]))
