"""The worker pool: isolated processes that do tasks, supervised and replaced by one thread.

    source ── take ─▶ pool ── PROCESS_TASK ─▶ worker process, some slots each
           ◀ finish ──     ◀─ TASK_COMPLETED ──

Each worker has its own pipes and shares nothing with the others, so nothing that one does,
and no way in which it ends, affects them. The pool's thread waits for all workers at once
and never for a single one.
"""

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
from holdfast.exports.pool.supervisor import Supervisor
from holdfast.exports.pool.worker import HandlerFactory, TaskSource, WorkerInfo
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.process.frames import Program
from holdfast.process.liveness import LivenessLimits


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
        limits = LivenessLimits(
            timeout_seconds=task_timeout_seconds, pulse_seconds=response_timeout_seconds
        )
        self.size = size
        self._clock = clock
        self._supervisor = Supervisor(
            make_program(make_handler, slots, limits.compute_pulse_seconds()),
            source,
            size=size,
            min_size=min_size,
            slots=slots,
            max_attempts=max_attempts,
            limits=limits,
            events=events or Events(),
            clock=clock,
        )
        self._lock = Lock()
        self._commands: deque[Callable[[], None]] = deque()
        self._started = Event()  # also set if the start failed
        self._loop = BackgroundLoop(
            "holdfast-pool", self._tick, clock, target=self._run, wait=self._wait
        )
        self._wakeup = WakeupPipe()
        self._stopped = False

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
        if self._supervisor.failure is not None:
            self.stop(0.0)
            raise ConfigError(self._supervisor.failure)

    def wake(self) -> None:
        """Take tasks again, because there may be new ones. No effect unless it runs."""
        self._wakeup.wake()

    def cancel(self, job_id: str) -> None:
        """Stop the job's running tasks soon, and give back those that were not done.

        Tasks of the job that are taken afterwards run as any other.
        """
        self._enqueue(partial(self._supervisor.cancel, job_id))

    def stop(self, drain_seconds: float) -> None:
        """Take no more tasks, let the running ones finish for so long, and give back the rest.

        Afterwards no thread, process or descriptor is left. A second call waits, too, and
        can shorten the time. Without a start, nothing happens. The source's methods must
        not call this, because the pool's thread cannot wait for itself.
        """
        with self._lock:
            self._stopped = True
        self._enqueue(partial(self._supervisor.stop, drain_seconds))
        if (thread := self._loop.thread) is not None:
            thread.join()

    def list_workers(self) -> list[WorkerInfo]:
        """Return what each worker is doing now."""
        return [worker.to_info() for worker in self._supervisor.workers]

    def count_running_bytes(self, job_id: str) -> int:
        """Return how many bytes the running tasks of that job have processed."""
        running = (run for worker in self.list_workers() for run in worker.tasks)
        return sum(run.bytes_processed for run in running if run.assignment.job_id == job_id)

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

    def _tick(self) -> float:
        supervisor = self._supervisor
        try:
            while self._commands:
                self._commands.popleft()()
            pause = supervisor.tick()
        except Exception as error:  # the loop logs it; a bug must not end the running tasks
            if not self._started.is_set():
                supervisor.failure = f"a pass failed: {type(error).__name__}"
                supervisor.stop(0.0)
            raise
        if supervisor.failure is not None:
            supervisor.stop(0.0)
        elif supervisor.has_started:
            self._started.set()
        if supervisor.ended:
            self._loop.request_stop()
        return self._clock.monotonic() + pause

    def _wait(self, stopping: Event, seconds: float | None) -> None:
        """Wait for a wake-up, or until a worker can be read from or written to."""
        ready = poll()
        for worker in self._supervisor.workers:
            worker.register(ready)
        if not stopping.is_set():
            self._wakeup.wait(ready, seconds)


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
