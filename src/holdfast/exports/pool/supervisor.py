"""The workers of a pool, and one pass over them: step, reap, spawn, assign.

All of this runs in the pool's thread and never waits for a worker.

    the worker       its tasks
    reports a task   finished with the reported result
    ends in any      done again, alone on a worker, if attempts are left; otherwise failed
    way              with WorkerDied or TaskTimedOut
    the pool stops   finished in time, or given back
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from holdfast.errors import MessageTooLarge
from holdfast.events import Events
from holdfast.exports.events import PoolWorkerEnded, PoolWorkerStarted, TaskRetried
from holdfast.exports.model import JobError, TaskResult
from holdfast.exports.pool import wire
from holdfast.exports.pool.worker import (
    Assignment,
    PoolWorker,
    TaskAttempt,
    TaskSource,
    WorkerSlot,
)
from holdfast.lease.clock import Clock
from holdfast.process.child_process import ChildState
from holdfast.process.frames import PULSE, Program
from holdfast.process.liveness import LivenessLimits

MAX_TICK_SECONDS = 1.0  # a pass at least so often
_GROW_SECONDS = 1.0  # without a free slot, after which another worker is started
_ENDING_SECONDS = 0.005  # while a worker is ending
_STOPPING_SECONDS = 0.02

_log = logging.getLogger("holdfast")


class Supervisor:
    """The worker slots and their workers, for the pool's thread.

    Any thread may read `worker_slots` and `workers`.
    """

    def __init__(
        self,
        program: Program,
        source: TaskSource,
        *,
        size: int,
        min_size: int,
        slots: int,
        max_attempts: int,
        limits: LivenessLimits,
        events: Events,
        clock: Clock,
    ) -> None:
        self.worker_slots = tuple(WorkerSlot() for _ in range(size))
        self.failure: str | None = None  # why the pool cannot start
        self._program = program
        self._source = source
        self._min_size = min_size
        self._wanted_size = min_size  # how many workers are to exist now
        self._slots = slots
        self._max_attempts = max_attempts
        self._limits = limits
        self._events = events
        self._clock = clock
        self._retries: deque[TaskAttempt] = deque()
        self._nonces = count(1)
        self._stop_at: float | None = None
        self._last_tick_at = clock.monotonic()
        self._had_room_at = self._last_tick_at  # when a slot was last free for a task
        self._cancels_sent_at = self._last_tick_at

    # -- for the pool

    @property
    def workers(self) -> list[PoolWorker]:
        """The workers that exist now."""
        # Each slot is read once, because another thread may call this.
        workers = [slot.worker for slot in self.worker_slots]
        return [worker for worker in workers if worker is not None]

    @property
    def has_started(self) -> bool:
        """Whether each of the first slots had a worker that was ready."""
        return all(slot.was_ready for slot in self.worker_slots[: self._min_size])

    @property
    def ended(self) -> bool:
        """Whether the pool was stopped and no worker is left."""
        return self._stop_at is not None and not self.workers

    def cancel(self, job_id: str) -> None:
        """Stop the running tasks of that job, and give back those that wait for a retry."""
        for worker in self.workers:
            worker.cancel(job_id)
            worker.send_cancels()
        cancelled = [retry for retry in self._retries if retry.assignment.job_id == job_id]
        for attempt in cancelled:
            self._retries.remove(attempt)
            self._give_back(attempt.assignment)

    def stop(self, drain_seconds: float) -> None:
        """Take no more tasks, and let the running ones finish for so long.

        A second call can shorten the time, but not extend it.
        """
        stop_at = self._clock.monotonic() + drain_seconds
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)

    def tick(self) -> float:
        """Run one pass, and return how many seconds to wait at most before the next."""
        now = self._clock.monotonic()
        self._extend_timeouts(now)
        for slot in self.worker_slots:
            if slot.worker is not None:
                self._step(slot, slot.worker, now)
        if self._stop_at is None:
            self._fill_slots(now)
            self._assign(now)
        else:
            self._wind_down(now, self._stop_at)
        self._repeat_cancels(now)
        return self._compute_pause(now)

    # -- reading and checking

    def _extend_timeouts(self, now: float) -> None:
        """Extend all timeouts if this pass is late.

        A pass is due every second. A longer gap means that this process was kept from
        running by a suspended machine, a debugger or a stop signal. The workers may have
        been kept from sending for that time, too.
        """
        missed_seconds = now - self._last_tick_at - 2 * MAX_TICK_SECONDS
        self._last_tick_at = now
        if missed_seconds > 0:
            for worker in self.workers:
                worker.extend_timeouts(missed_seconds)

    def _step(self, slot: WorkerSlot, worker: PoolWorker, now: float) -> None:
        worker.step(partial(self._handle_frame, worker))
        worker.end_if_overdue(self._limits, now)
        slot.was_ready |= not worker.is_loading
        if worker.state is ChildState.GONE:
            self._replace(slot, worker, now)

    def _handle_frame(self, worker: PoolWorker, number: int, frame: bytes) -> None:
        if frame[:1] == PULSE:
            worker.record_progress(wire.unpack_progress(frame))
            return
        done, error = wire.unpack_completed(frame)
        # Any other nonce belongs to an attempt that this worker no longer has.
        if (run := worker.running.pop(number, None)) is not None:
            worker.finished_task = True
            self._complete(run, done, None if error is None else JobError(*error))

    # -- the end of a worker

    def _replace(self, slot: WorkerSlot, worker: PoolWorker, now: float) -> None:
        reason = worker.describe_end()
        if stacks := worker.stacks:
            _log.warning("worker process %d ended: %s\n%s", worker.pid, reason, stacks)
        slot.vacate(now)
        if worker.broken is not None and not self.has_started:
            self.failure = f"the task handler cannot be created: {': '.join(worker.broken)}"
        self._fail_start(slot, reason)
        if self._stop_at is None:
            self._events.emit(PoolWorkerEnded(worker.pid, reason))
        self._requeue_tasks(worker, reason)

    def _fail_start(self, slot: WorkerSlot, reason: str) -> None:
        if slot.has_failed and not self.has_started and self.failure is None:
            self.failure = f"worker processes exit before they are ready: {reason}"

    def _requeue_tasks(self, worker: PoolWorker, reason: str) -> None:
        for run in worker.running.values():
            self._requeue(run, len(worker.running) == 1, reason)

    def _requeue(self, run: TaskAttempt, alone: bool, reason: str) -> None:
        """Give the task another attempt, or fail it if it must have caused the worker's end."""
        task, number = run.assignment, run.number
        if run.cancelled or self._stop_at is not None:
            self._give_back(task)
        elif (alone or run.overdue) and number >= self._max_attempts:
            code = "TaskTimedOut" if run.overdue else "WorkerDied"
            message = f"given up after attempt {number}; the worker: {reason}"
            self._finish(task, error=JobError(code, message))
        else:
            self._retries.append(TaskAttempt(task, number + 1, suspect=True))
            self._events.emit(TaskRetried(task.job_id, task.task_id, number + 1, reason))

    # -- new workers and new tasks

    def _fill_slots(self, now: float) -> None:
        for slot in self.worker_slots[: self._wanted_size]:
            if slot.worker is None and now >= slot.not_before:
                self._spawn_worker(slot, now)

    def _spawn_worker(self, slot: WorkerSlot, now: float) -> None:
        try:
            worker = PoolWorker(self._program, self._slots, self._limits, self._clock)
        except OSError as error:  # no memory, no process id or no descriptor is left
            _log.warning("no worker process can be started: %s", error)
            slot.delay_next(now)
            self._fail_start(slot, str(error))
            return
        slot.worker = worker
        self._events.emit(PoolWorkerStarted(worker.pid))

    def _assign(self, now: float) -> None:
        # Suspects get the idle workers first. There will be one for each, because each came
        # from a worker that ended, and its successor is idle until it gets a suspect.
        for worker in self.workers:
            if worker.is_idle and self._retries:
                self._give(worker, self._retries.popleft(), now)
        self._grow(now)
        able = [worker for worker in self.workers if worker.has_room]
        while able and (task := self._take()):
            least_busy = min(able, key=lambda worker: len(worker.running))
            self._give(least_busy, TaskAttempt(task), now)
            if not least_busy.has_room:
                able.remove(least_busy)
        for worker in self.workers:
            worker.flush()

    def _grow(self, now: float) -> None:
        """Want one more worker if no slot became free for a while.

        More workers than cores help only tasks that mostly wait, and such tasks occupy all
        slots for that long.
        """
        if any(w.has_room or w.state is ChildState.STARTING for w in self.workers):
            self._had_room_at = now
        elif now - self._had_room_at >= _GROW_SECONDS:
            self._wanted_size = min(self._wanted_size + 1, len(self.worker_slots))
            self._had_room_at = now

    def _give(self, worker: PoolWorker, attempt: TaskAttempt, now: float) -> None:
        try:
            worker.assign(attempt, next(self._nonces), now)
        except (TypeError, ValueError, RecursionError, MessageTooLarge):
            # The error's own text is left out, because it quotes the payload.
            problem = "the task is not plain data, or larger than 2 MiB"
            self._finish(attempt.assignment, error=JobError("InvalidTask", problem))

    def _repeat_cancels(self, now: float) -> None:
        if now - self._cancels_sent_at >= MAX_TICK_SECONDS:
            self._cancels_sent_at = now
            for worker in self.workers:
                worker.send_cancels()

    # -- stopping

    def _wind_down(self, now: float, stop_at: float) -> None:
        while self._retries:
            self._give_back(self._retries.popleft().assignment)
        for worker in self.workers:
            if worker.is_idle:
                worker.leave()
            elif worker.state is ChildState.STARTING or (worker.running and now >= stop_at):
                worker.end("the pool stops")

    def _compute_pause(self, now: float) -> float:
        if any(worker.state is ChildState.ENDING for worker in self.workers):
            return _ENDING_SECONDS
        if self._stop_at is not None:
            return _STOPPING_SECONDS
        wanted = self.worker_slots[: self._wanted_size]
        due = [slot.not_before - now for slot in wanted if slot.worker is None]
        return max(0.0, min([MAX_TICK_SECONDS, *due]))

    # -- the source: its errors are logged, so that other tasks go on

    def _take(self) -> Assignment | None:
        task: Assignment | None = self._call("give one", self._source.take)
        return task

    def _complete(self, run: TaskAttempt, done: int, error: JobError | None) -> None:
        """Pass on the result of a task, or give the task back if it was cancelled.

        A failure after a cancel was requested, so it is not a result. A job can be resumed
        while tasks of its last run are being cancelled, and the handler cannot tell the two
        runs apart. So a task that was cancelled by mistake is given back and done again.
        """
        if error is not None and (run.cancelled or error.code == wire.CANCELLED):
            self._give_back(run.assignment)
        else:
            self._finish(run.assignment, done, error)

    def _finish(self, task: Assignment, done: int = 0, error: JobError | None = None) -> None:
        result = TaskResult(task.job_id, task.task_id, error is None, done, error)
        self._call("take a result", self._source.finish, result)

    def _give_back(self, task: Assignment) -> None:
        self._call("take one back", self._source.give_back, task)

    def _call(self, purpose: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception:
            _log.exception("the source of tasks failed to %s", purpose)
            return None
