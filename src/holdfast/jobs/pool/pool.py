"""The worker pool: isolated processes that do tasks, watched and replaced by one thread.

    source ── take ─▶ pool ── PROCESS_TASK ─▶ worker process, some slots each
           ◀ finished ──   ◀─ TASK_COMPLETED ──

Each worker has pipes of its own and shares nothing with its neighbours: whatever one does
or however it ends, the others do not notice. The pool's thread waits for all of them at
once and for none in particular.
"""

import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from select import POLLIN, POLLOUT, poll
from threading import Event, RLock, Thread

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.events import Events
from holdfast.jobs.pool.ports import (
    Assignment,
    RunningTaskInfo,
    TaskHandler,
    TaskSource,
    WorkerInfo,
    WorkFactory,
)
from holdfast.jobs.pool.process import WorkerProcess, pickled
from holdfast.jobs.pool.safe_source import SafeTaskSource
from holdfast.jobs.pool.supervisor import GLANCE_SECONDS, Supervisor
from holdfast.jobs.pool.worker import PoolLimits, PoolWorker, WorkerState

__all__ = [
    "Assignment",
    "RunningTaskInfo",
    "TaskHandler",
    "TaskSource",
    "WorkFactory",
    "WorkerInfo",
    "WorkerPool",
]

_log = logging.getLogger("holdfast")


class WorkerPool:
    """`size` worker processes with `slots` tasks each. Starts once, stops once.

    A task whose worker ends is done again, alone on a worker, up to `max_attempts` times in
    all; that goes for a task that takes longer than `task_seconds`, too. A worker that is
    not heard of for `answer_seconds` is ended.
    """

    def __init__(
        self,
        make_work: WorkFactory,
        source: TaskSource,
        *,
        size: int = 4,
        slots: int = 4,
        max_attempts: int = 3,
        task_seconds: float = 3600.0,
        answer_seconds: float = 30.0,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Raises ConfigError for work that cannot be sent to a process, or a wrong number."""
        _check_counts(size=size, slots=slots, max_attempts=max_attempts)
        _check_seconds(task_seconds=task_seconds, answer_seconds=answer_seconds)
        limits = PoolLimits(task_seconds, answer_seconds)
        self._clock = clock
        self._crew = Supervisor(
            partial(WorkerProcess, pickled(make_work), slots, limits.pulse_seconds),
            SafeTaskSource(source),
            size=size,
            slots=slots,
            max_attempts=max_attempts,
            limits=limits,
            events=events or Events(),
            clock=clock,
        )
        self._lock = RLock()
        self._orders: deque[Callable[[], None]] = deque()
        self._settled = Event()  # started, or not to be started
        self._thread: Thread | None = None
        self._bell: WakeupPipe | None = None
        self._stopped = False

    # -- from any thread

    def start(self) -> None:
        """Every worker is ready afterwards; tasks are taken from now on. Twice: nothing.

        Raises ConfigError, with nothing left running, when the work cannot be made or
        worker processes end before they begin.
        """
        with self._lock:
            if self._stopped:
                raise RuntimeError("a worker pool that was stopped stays stopped")
            if self._thread is None:
                self._bell = WakeupPipe()
                thread = Thread(target=self._run, name="holdfast-pool", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads to be had
                    self._bell.close()
                    self._bell = None
                    raise
                self._thread = thread
        try:
            self._settled.wait()
        except BaseException:  # Ctrl-C while we wait
            self.stop(0.0)
            raise
        if self._crew.failure is not None:
            self.stop(0.0)
            raise ConfigError(self._crew.failure)

    def wake(self) -> None:
        """There may be tasks again. Nothing happens while the pool does not run."""
        with self._lock:
            if self._bell is not None:
                self._bell.ring()

    def cancel(self, job_id: str) -> None:
        """Have the job's running tasks stop soon; they are returned, unless they were done.

        Tasks of it that are taken afterwards are done as any other.
        """
        self._order(partial(self._crew.cancel, job_id))

    def stop(self, drain_seconds: float) -> None:
        """Take no more tasks, let those that run finish for so long, end and return the rest.

        Afterwards no thread, process or descriptor is left. Calling again waits, too, and
        can shorten the time; without a start, nothing happens. Not from the source's
        methods: the pool's thread cannot wait for itself.
        """
        with self._lock:
            self._stopped = True
        self._order(partial(self._crew.stop, drain_seconds))
        if self._thread is not None:
            self._thread.join()

    def view(self) -> list[WorkerInfo]:
        """What each worker does right now."""
        now = self._clock.monotonic()
        return [worker.view(now) for worker in self._crew.workers]

    def bytes_of(self, job_id: str) -> int:
        """How far the tasks of that job that run now have come, in bytes."""
        running = (task for worker in self.view() for task in worker.tasks)
        return sum(task.bytes_processed for task in running if task.job_id == job_id)

    def _order(self, order: Callable[[], None]) -> None:
        with self._lock:
            self._orders.append(order)
            self.wake()

    # -- the pool's thread

    def _run(self) -> None:
        bell = self._bell
        assert bell is not None
        try:
            while not self._crew.ended:
                pause = self._pass()
                bell.wait(self._crew.workers, pause)
        finally:
            self._settled.set()
            with self._lock:
                self._bell = None
                bell.close()

    def _pass(self) -> float:
        try:
            while self._orders:
                self._orders.popleft()()
            pause = self._crew.tick()
        except Exception as error:  # a surprise; the tasks that run must not pay for it
            _log.exception("a pass of the worker pool failed")
            pause = GLANCE_SECONDS
            if not self._settled.is_set():
                self._crew.failure = f"a pass failed: {type(error).__name__}"
        if self._crew.failure is not None:
            self._crew.stop(0.0)
        elif self._crew.complete:
            self._settled.set()
        return pause


class WakeupPipe:
    """Wakes the pool's thread where it waits for its workers."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        for pipe in (self._reads, self._writes):
            os.set_blocking(pipe, False)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it rings already
            os.write(self._writes, b"!")

    def wait(self, workers: list[PoolWorker], seconds: float) -> None:
        """Until it rings, a worker says or takes something, or time is up."""
        news = poll()
        news.register(self._reads, POLLIN)
        for worker in workers:
            if (
                worker.state is not WorkerState.ENDING
            ):  # its pipe is at its end, and always ready
                news.register(worker.process.answers, POLLIN)
                if worker.process.unsent:
                    news.register(worker.process.orders, POLLOUT)
        news.poll(seconds * 1000)
        with suppress(BlockingIOError):
            os.read(self._reads, 4096)

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")


def _check_seconds(**durations: float) -> None:
    for name, value in durations.items():
        if not value > 0:
            raise ConfigError(f"{name} must be more than 0, not {value}")
