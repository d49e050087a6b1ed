"""The worker pool: isolated processes that do tasks, supervised and replaced by one thread.

    source ── take ─▶ pool ── PROCESS_TASK ─▶ worker process, some slots each
           ◀ finish ──     ◀─ TASK_COMPLETED ──

Each worker has its own pipes and shares nothing with the others, so nothing that one does,
and no way in which it ends, affects them. The pool's thread waits for all workers at once
and never for a single one.
"""

import logging
import os
import pickle
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from select import POLLIN, poll
from threading import Event, Lock

from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports.events import PoolWorkerEnded, PoolWorkerStarted
from holdfast.exports.pool.pool_tasks import PoolTasks
from holdfast.exports.pool.worker import (
    HandlerFactory,
    PoolWorker,
    TaskSource,
    WorkerInfo,
    WorkerSlot,
)
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.process.child_process import ChildState
from holdfast.process.frames import Program
from holdfast.process.liveness import LivenessLimits

_MAX_TICK_SECONDS = 1.0  # a pass at least so often
_GROW_SECONDS = 1.0  # without a free slot, after which another worker is started
_ENDING_SECONDS = 0.005  # while a worker is ending
_STOPPING_SECONDS = 0.02

_log = logging.getLogger("holdfast")


class WorkerPool:
    """Up to `size` worker processes with `slots` tasks each. Starts once, stops once.

    `min_size` workers exist from the start, by default as many as there are cores. More are
    started, up to `size`, when all slots were taken for a second.
    If a worker ends, its tasks are done again, each alone on a worker, up to `max_attempts`
    times in all. The same holds for a task that takes longer than `task_timeout_seconds`. A
    worker that sends nothing for `response_timeout_seconds` is killed.
    """

    def __init__(
        self,
        make_handler: HandlerFactory,
        source: TaskSource,
        *,
        size: int = 4,
        min_size: int | None = None,
        slots: int = 4,
        max_attempts: int = 3,
        task_timeout_seconds: float = 3600.0,
        response_timeout_seconds: float = 30.0,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a pool.

        Raises ConfigError if `make_handler` cannot be pickled or a number is out of range.
        """
        min_size = min(size, _count_cores()) if min_size is None else min_size
        counts = {"size": size, "min_size": min_size, "slots": slots}
        counts["max_attempts"] = max_attempts
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} must be at least 1, not {count}")
        if min_size > size:
            raise ConfigError(f"min_size must be at most size, {size}, not {min_size}")
        durations = {"task_timeout_seconds": task_timeout_seconds}
        durations["response_timeout_seconds"] = response_timeout_seconds
        for name, seconds in durations.items():
            if not seconds > 0:
                raise ConfigError(f"{name} must be more than 0, not {seconds}")
        self.size = size
        self._limits = LivenessLimits(
            timeout_seconds=task_timeout_seconds, pulse_seconds=response_timeout_seconds
        )
        self._program = make_program(make_handler, slots, self._limits.compute_pulse_seconds())
        self._min_size = self._wanted_size = min_size  # how many workers are to exist now
        self._slots = slots
        self._worker_slots = tuple(WorkerSlot() for _ in range(size))
        self._events = events or Events()
        self._tasks = PoolTasks(source, max_attempts, self._events)
        self._clock = clock
        self._last_tick_at = clock.monotonic()
        self._had_room_at = self._last_tick_at  # when a slot was last free for a task
        self._cancels_sent_at = self._last_tick_at
        self._lock = Lock()
        self._commands: deque[Callable[[], None]] = deque()
        self._started = Event()  # also set if the start failed
        self._failure: str | None = None  # why the pool cannot start
        self._stop_at: float | None = None
        self._stopped = False
        self._loop = BackgroundLoop(
            "holdfast-pool", self.tick, clock, target=self._run, wait=self._wait
        )
        self._wakeup = WakeupPipe()

    # -- from any thread

    def start(self) -> None:
        """Start `min_size` workers and return when each is ready. Starting twice is safe.

        Tasks are taken from now on. Raises ConfigError, with no process left, if the task
        handler cannot be created or worker processes exit before they are ready.
        """
        with self._lock:
            if self._stopped:
                raise RuntimeError("a worker pool that was stopped cannot be started again")
            if self._loop.thread is None:
                self._wakeup.open()
                try:
                    self._loop.start()
                except RuntimeError:  # the system has no more threads
                    self._wakeup.close()
                    raise
        try:
            self._started.wait()
        except BaseException:  # Ctrl-C during the wait
            self.stop(0.0)
            raise
        if self._failure is not None:
            self.stop(0.0)
            raise ConfigError(self._failure)

    def wake(self) -> None:
        """Take tasks again, because there may be new ones. No effect unless it runs."""
        self._wakeup.wake()

    def cancel(self, job_id: str) -> None:
        """Stop the job's running tasks soon, and give back those that were not done.

        Tasks of the job that are taken afterwards run as any other.
        """
        self._enqueue(partial(self._cancel, job_id))

    def stop(self, drain_seconds: float) -> None:
        """Take no more tasks, let the running ones finish for so long, and give back the rest.

        Afterwards no thread, process or descriptor is left. A second call waits, too, and
        can shorten the time. Without a start, nothing happens. The source's methods must
        not call this, because the pool's thread cannot wait for itself.
        """
        with self._lock:
            self._stopped = True
        self._enqueue(partial(self._begin_stop, drain_seconds))
        if (thread := self._loop.thread) is not None:
            thread.join()

    def list_workers(self) -> list[WorkerInfo]:
        """Return what each worker is doing now."""
        return [worker.to_info() for worker in self._workers]

    def count_running_bytes(self, job_id: str) -> int:
        """Return how many bytes the running tasks of that job have processed."""
        running = (run for worker in self.list_workers() for run in worker.tasks)
        return sum(run.bytes_processed for run in running if run.assignment.job_id == job_id)

    @property
    def _workers(self) -> list[PoolWorker]:
        # Each slot is read once, because another thread may call this.
        workers = [slot.worker for slot in self._worker_slots]
        return [worker for worker in workers if worker is not None]

    def _enqueue(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self.wake()

    # -- the pool's thread

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            self._started.set()
            self._wakeup.close()

    def _wait(self, stopping: Event, seconds: float | None) -> None:
        """Wait for a wake-up, or until a worker can be read from or written to."""
        ready = poll()
        for worker in self._workers:
            worker.register(ready)
        if not stopping.is_set():
            self._wakeup.wait(ready, seconds)

    def tick(self) -> float:
        """Run one pass, and return when to run the next one at the latest."""
        try:
            while self._commands:
                self._commands.popleft()()
            pause = self._run_pass(self._clock.monotonic())
        except Exception as error:  # the loop logs it; a bug must not end the running tasks
            if not self._started.is_set():
                self._failure = f"a pass failed: {type(error).__name__}"
                self._begin_stop(0.0)
            raise
        if self._failure is not None:
            self._begin_stop(0.0)
        elif self._has_started:
            self._started.set()
        if self._stop_at is not None and not self._workers:
            self._loop.request_stop()
        return self._clock.monotonic() + pause

    def _run_pass(self, now: float) -> float:
        """Step, replace, start and use the workers. Return the seconds until the next pass."""
        self._extend_timeouts(now)
        for slot in self._worker_slots:
            if slot.worker is not None:
                self._step(slot, slot.worker, now)
        if self._stop_at is None:
            self._fill_slots(now)
            self._assign(now)
        else:
            self._wind_down(now, self._stop_at)
        if now - self._cancels_sent_at >= _MAX_TICK_SECONDS:
            self._cancels_sent_at = now
            for worker in self._workers:
                worker.send_cancels()
        return self._compute_pause(now)

    def _extend_timeouts(self, now: float) -> None:
        """Extend all timeouts if this pass is late.

        A pass is due every second. A longer gap means that this process was kept from
        running by a suspended machine, a debugger or a stop signal. The workers may have
        been kept from sending for that time, too.
        """
        missed_seconds = now - self._last_tick_at - 2 * _MAX_TICK_SECONDS
        self._last_tick_at = now
        if missed_seconds > 0:
            for worker in self._workers:
                worker.extend_timeouts(missed_seconds)

    def _compute_pause(self, now: float) -> float:
        if any(worker.state is ChildState.ENDING for worker in self._workers):
            return _ENDING_SECONDS
        if self._stop_at is not None:
            return _STOPPING_SECONDS
        wanted = self._worker_slots[: self._wanted_size]
        due = [slot.not_before - now for slot in wanted if slot.worker is None]
        return max(0.0, min([_MAX_TICK_SECONDS, *due]))

    # -- the life of a worker

    def _fill_slots(self, now: float) -> None:
        for slot in self._worker_slots[: self._wanted_size]:
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

    def _step(self, slot: WorkerSlot, worker: PoolWorker, now: float) -> None:
        worker.step(partial(self._tasks.handle_frame, worker))
        worker.end_if_overdue(self._limits, now)
        slot.was_ready |= not worker.is_loading
        if worker.state is ChildState.GONE:
            self._replace(slot, worker, now)

    def _replace(self, slot: WorkerSlot, worker: PoolWorker, now: float) -> None:
        reason = worker.describe_end()
        if stacks := worker.stacks:
            _log.warning("worker process %d ended: %s\n%s", worker.pid, reason, stacks)
        slot.vacate(now)
        if worker.broken is not None and not self._has_started:
            self._failure = f"the task handler cannot be created: {': '.join(worker.broken)}"
        self._fail_start(slot, reason)
        if self._stop_at is None:
            self._events.emit(PoolWorkerEnded(worker.pid, reason))
            self._tasks.requeue_tasks(worker, reason)
        else:
            self._tasks.give_back(*worker.running.values())

    def _fail_start(self, slot: WorkerSlot, reason: str) -> None:
        if slot.has_failed and not self._has_started and self._failure is None:
            self._failure = f"worker processes exit before they are ready: {reason}"

    @property
    def _has_started(self) -> bool:
        """Whether each of the first slots had a worker that was ready."""
        return all(slot.was_ready for slot in self._worker_slots[: self._min_size])

    # -- the tasks of the workers

    def _assign(self, now: float) -> None:
        # Suspects get the idle workers first. There will be one for each, because each came
        # from a worker that ended, and its successor is idle until it gets a suspect.
        for worker in self._workers:
            if worker.is_idle and (retry := self._tasks.take_retry()) is not None:
                self._tasks.assign(worker, retry, now)
        self._grow(now)
        able = [worker for worker in self._workers if worker.has_room]
        while able and (attempt := self._tasks.take()) is not None:
            least_busy = min(able, key=lambda worker: len(worker.running))
            self._tasks.assign(least_busy, attempt, now)
            if not least_busy.has_room:
                able.remove(least_busy)
        for worker in self._workers:
            worker.frames.flush()

    def _grow(self, now: float) -> None:
        """Want one more worker if no slot became free for a while.

        More workers than cores help only tasks that mostly wait, and such tasks occupy all
        slots for that long.
        """
        if any(w.has_room or w.state is ChildState.STARTING for w in self._workers):
            self._had_room_at = now
        elif now - self._had_room_at >= _GROW_SECONDS:
            self._wanted_size = min(self._wanted_size + 1, self.size)
            self._had_room_at = now

    def _cancel(self, job_id: str) -> None:
        for worker in self._workers:
            worker.cancel(job_id)
            worker.send_cancels()
        self._tasks.give_back_retries(job_id)

    def _begin_stop(self, drain_seconds: float) -> None:
        """Take no more tasks. A second call can shorten the time, but not extend it."""
        stop_at = self._clock.monotonic() + drain_seconds
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)

    def _wind_down(self, now: float, stop_at: float) -> None:
        self._tasks.give_back_retries()
        for worker in self._workers:
            if worker.is_idle:
                worker.leave()
            elif worker.state is ChildState.STARTING or (worker.running and now >= stop_at):
                worker.end("the pool stops")


def make_program(make_handler: HandlerFactory, slots: int, pulse_seconds: float) -> Program:
    """Return the program of the workers. Raises ConfigError if they could not load it."""
    try:
        factory = pickle.dumps(make_handler)
    except Exception as error:  # pickling an object can raise anything
        raise ConfigError(
            "the task handler cannot be sent to a worker process "
            f"({type(error).__name__}: {error}): use a function at the top of an importable "
            "module, or a partial of one"
        ) from None
    options = {"slots": slots, "pulse_seconds": pulse_seconds}
    return Program("holdfast.exports.pool.worker_main", factory, options)


class WakeupPipe:
    """A pipe that wakes the pool's thread while it waits for its workers."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: tuple[int, int] | None = None

    def open(self) -> None:
        """Open both ends. Raises OSError if no descriptor is left."""
        self._ends = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)

    def wake(self) -> None:
        """End the current or the next `wait`. Does nothing while the pipe is closed."""
        with self._lock, suppress(BlockingIOError):  # if it is full, the thread wakes anyway
            if self._ends is not None:
                os.write(self._ends[1], b"!")

    def wait(self, ready: poll, seconds: float | None) -> None:
        """Wait for a wake-up, or until something that is registered is ready."""
        assert self._ends is not None
        ready.register(self._ends[0], POLLIN)
        ready.poll(None if seconds is None else seconds * 1000)
        with suppress(BlockingIOError):
            os.read(self._ends[0], 4096)

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            for end in self._ends or ():
                os.close(end)
            self._ends = None


def _count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
