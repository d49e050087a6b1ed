"""The heartbeat orchestrator keeps Step Functions waiting for every job that makes progress.

    loop ──┬─ each half ─────▶ lister ──▶ schedule        jobs that no process works on
           │  of an interval   (own thread)
           └─ what is due ───▶ senders ─┬─ accepted ▶ schedule, at its next offset
              (up to 32 threads)        ├─ failed ──▶ schedule, in 2, 4, 8, 8 s
                                        └─ closed ──▶ schedule, in 2 s; the second time
                                                      token_closed (own thread)

The loop itself never waits for a call. So a slow store, a slow reconciler or a heartbeat
that hangs does not delay the heartbeats of other jobs.

A process sends the heartbeats of the jobs that it received. It sends those of another job only
if that job made no progress from one listing to the next, so a process that lives sends them
alone, and after a crash all others do:

    ▲ last heartbeat     ✕ crash     ▲ listing: progress   ▲ listing: none, so beat at once
    ├─ at most an interval ─┼─ half an interval ─┼─ half an interval ─┤

So the gap is at most two intervals. Two processes may send the same heartbeat, which is safe.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from secrets import token_hex
from threading import Event, Lock, Thread, current_thread

from holdfast.doctor.checks import CheckLevel
from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports import events as ev
from holdfast.exports.errors import CallbackRefused, TokenClosed
from holdfast.exports.heartbeat_schedule import (
    HeartbeatCycle,
    HeartbeatSchedule,
    HeartbeatTiming,
    ScheduledHeartbeat,
)
from holdfast.exports.model import ExportJob
from holdfast.exports.ports import StepFunctions
from holdfast.exports.reconciler import ActiveJobLister, ActiveJobReader, ProgressWatch
from holdfast.exports.settings import check_interval
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("holdfast")

Work = Callable[[], None]

_MAX_WAIT_SECONDS = 1.0  # so that heartbeats go on soon after the machine was suspended


class HeartbeatOrchestrator:
    """Sends heartbeats for the jobs of this process, and for those that no process works on.

    The first is sent at once when the job is received here, then one every
    `interval_seconds` until it is terminal or stalled, whether it makes progress or not.
    A job of another process gets heartbeats while it makes no progress.

    If two heartbeats in a row are refused because Step Functions no longer waits for the
    job's token, `token_closed(job, code)` is called with the job as it was when the second
    one was sent. A single refusal may be a mistake of the service. The token then gets no
    more heartbeats. Errors of `token_closed` are logged, and it delays no heartbeat.
    A stalled job gets no heartbeats; the reconciler fails it.
    """

    def __init__(
        self,
        jobs: ActiveJobReader,
        step_functions: StepFunctions,
        *,
        token_closed: Callable[[ExportJob, str], object],
        interval_seconds: float = 30.0,
        enabled: bool = True,
        stall_seconds: float | None = 3600.0,
        heartbeat_timeout_seconds: float | None = None,
        concurrency: int = 32,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_heartbeat_settings(
            interval_seconds, heartbeat_timeout_seconds, stall_seconds, concurrency
        )
        self._jobs = jobs
        self._clock = clock
        self._events = events or Events()
        self._step_functions = step_functions
        self._token_closed = token_closed
        self._interval_seconds = interval_seconds
        self._timeout_seconds = heartbeat_timeout_seconds
        self._enabled = enabled
        self.lister = ActiveJobLister(
            jobs,
            self._events,
            clock,
            stall_seconds=stall_seconds,
            interval_seconds=interval_seconds,
        )
        self._watch = ProgressWatch(clock, max_quiet_seconds=interval_seconds / 2)
        self._timing = HeartbeatTiming(
            interval_seconds,
            clock.monotonic(),
            process_id=token_hex(8),
            can_skip=(heartbeat_timeout_seconds or 0.0) >= 3 * interval_seconds,
        )
        self._listings = HeartbeatTiming(interval_seconds / 2, self._timing.began_at)
        self._loop = BackgroundLoop(
            "holdfast-heartbeats", self.tick, clock, max_wait_seconds=_MAX_WAIT_SECONDS
        )
        self._schedule = HeartbeatSchedule(self._timing, self._loop.wake)
        self._sending = ThreadPool("holdfast-heartbeat", concurrency)
        self._listing = ThreadPool("holdfast-active-jobs")
        self._closing = ThreadPool("holdfast-token-closed")
        self._pools = (self._listing, self._sending, self._closing)
        self._started = self._stopped = False
        self._cycle_at = self._timing.began_at
        self._cycles: set[HeartbeatCycle] = set()
        self._lock = Lock()

    # -- it starts once and stops once

    @property
    def running(self) -> bool:
        """Whether the orchestrator was started and not stopped."""
        return self._enabled and self._started and not self._stopped

    @property
    def in_flight(self) -> int:
        """The number of heartbeats, listings and `token_closed` calls that are not done."""
        return sum(pool.load for pool in self._pools)

    def start(self) -> None:
        """Start the loop in the background. Does nothing if it was started or stopped."""
        with self._lock:
            if self._started or self._stopped:
                return
            if self._enabled:
                self._loop.start()
            self._started = True
        self._emit_started()

    def stop(self, wait_seconds: float = 10.0) -> None:
        """Send no new heartbeats, and wait so long for those in flight.

        Stop the orchestrator last at shutdown, because jobs need heartbeats while their
        tasks are drained. It cannot be started again. Stopping twice is safe.
        """
        with self._lock:
            if self._stopped:
                return
            was_running, self._stopped = self.running, True
        if was_running:
            self._events.emit(ev.OrchestratorStopping(self._sending.load))
        ended = self._end(wait_seconds)
        if not ended:
            _log.warning("heartbeats were still in flight after %g s", wait_seconds)
        elif was_running:
            self._events.emit(ev.OrchestratorStopped())

    # -- jobs of this process

    def beat_now(self, job: ExportJob) -> None:
        """Send heartbeats for a job that was received here, the first one at once.

        Another thread sends them. They go on even if the store's listing does not have the
        job yet.
        """
        if _can_beat(job) and not job.terminal and self._enabled:
            moves = self.lister.measure_stall(job) is None
            self._schedule.receive(job, self._clock.monotonic(), beat=moves)

    def forget(self, job_id: str) -> None:
        """Send no more heartbeats for the job, because it is terminal here."""
        self._schedule.forget(job_id, self._clock.monotonic())

    def trigger_heartbeat(self) -> int:
        """Run one whole cycle now, started or not, and return how many beats were sent.

        The cycle lists the jobs, finds the stalled ones and sends one heartbeat for each of
        the others, whether they make progress or not. It ends after all calls that follow
        from that. Heartbeats that were not accepted are counted, too.
        """
        cycle = HeartbeatCycle()
        with self._lock:
            if self._stopped:
                return 0
            self._cycles.add(cycle)
        if self._listing.submit(partial(self._run_cycle, cycle)):
            cycle.ended.wait()
        self._cycles.discard(cycle)
        return cycle.sent

    # -- the loop

    def tick(self) -> float:
        """Run one pass: begin a cycle if it is time, and send the due heartbeats.

        Returns when the next pass is due, by the monotonic clock.
        """
        now = self._clock.monotonic()
        if now >= self._cycle_at:
            self._cycle_at = self._listings.compute_next_at(0.0, now)
            if self._listing.load == 0:  # otherwise a cycle still runs, and two must not
                self._listing.submit(self._run_cycle)
        self._submit(self._schedule.take_due(now))
        return min(self._cycle_at, self._schedule.await_next())

    def _submit(self, heartbeats: list[ScheduledHeartbeat]) -> None:
        for heartbeat in heartbeats:
            if not self._sending.submit(partial(self._send, heartbeat)):
                self._reschedule(heartbeat, sent=False, failed=True)

    def _send(self, heartbeat: ScheduledHeartbeat) -> None:
        if not heartbeat.live:  # it was dropped while it waited for a thread
            self._reschedule(heartbeat, sent=False)
            return
        job, began_at = heartbeat.job, self._clock.monotonic()
        code: str | None = "Cancelled"  # unless the call returns
        error: Exception | None = None
        try:
            assert job.task_token is not None  # jobs without a token are never scheduled
            self._step_functions.send_task_heartbeat(job.task_token)
            code = heartbeat.refused_token = None
        except Exception as failure:  # the job goes on, and the next heartbeat tries again
            error, code = failure, getattr(failure, "code", "") or type(failure).__name__
        finally:
            # In `finally`, so that a heartbeat that is cancelled at shutdown is counted, too.
            # Otherwise the accepted and the failed heartbeats would not add up to all sent.
            seconds = self._clock.monotonic() - began_at
            if not isinstance(error, TokenClosed):
                self._emit_result(job, code, seconds)
        if not isinstance(error, TokenClosed):
            refused = isinstance(error, CallbackRefused)
            self._reschedule(heartbeat, failed=error is not None, refused=refused)
        # Handled in another thread, because that reads and writes the store, and the threads
        # that send are few.
        elif not self._closing.submit(
            partial(self._handle_closed, heartbeat, job, error.code, seconds)
        ):
            self._emit_result(job, error.code, seconds)
            self._reschedule(heartbeat)

    def _emit_result(self, job: ExportJob, code: str | None, seconds: float) -> None:
        """Emit the event of a heartbeat, from which logs and metrics are made.

        If its token is closed, only the job's row can tell whether that is a failure.
        """
        if not self._events.has_subscribers:
            return
        if code is not None:
            self._events.emit(ev.HeartbeatFailed(job.job_id, code, seconds))
            return
        state = job.state
        done, total = state.completed_tasks, state.total_tasks
        self._events.emit(ev.HeartbeatSent(job.job_id, done, total, state.percent, seconds))

    def _handle_closed(
        self, heartbeat: ScheduledHeartbeat, job: ExportJob, code: str, seconds: float
    ) -> None:
        is_confirmed = heartbeat.refused_token == job.task_token
        heartbeat.refused_token = job.task_token
        needs_second = False
        try:
            # Before `token_closed`, which notes it in the row, and that explains refusals.
            was_needed = self._was_needed(job)
            needs_second = was_needed and not is_confirmed
            if was_needed:
                self._emit_result(job, code, seconds)
            if not needs_second:
                self._token_closed(job, code)
                self._schedule.drop_token(job)
        finally:
            self._reschedule(heartbeat, failed=needs_second)

    def _was_needed(self, job: ExportJob) -> bool:
        """Return whether the token was closed while its job needed it.

        If the job's outcome was sent a moment ago, or the job has another token by now,
        the refusal is expected.
        """
        try:
            stored = self._jobs.find_by_id(job.job_id)
        except Exception:  # nothing explains the refusal
            return True
        return stored is None or stored.is_awaiting_outcome(job.task_token)

    def _reschedule(
        self,
        heartbeat: ScheduledHeartbeat,
        *,
        sent: bool = True,
        failed: bool = False,
        refused: bool = False,
    ) -> None:
        now = self._clock.monotonic()
        self._schedule.reschedule(heartbeat, now, sent=sent, failed=failed, refused=refused)

    # -- one cycle

    def _run_cycle(self, cycle: HeartbeatCycle | None = None) -> None:
        try:
            self._list_jobs(beat_all=cycle is not None)
        finally:
            if cycle is not None:
                self._submit(self._schedule.take_all(cycle))

    def _list_jobs(self, *, beat_all: bool) -> None:
        asked_at = self._clock.monotonic()
        # A job received in the last interval may not be in the index yet.
        expected = self._schedule.list_received(before=asked_at - self._interval_seconds)
        active = self.lister.list()
        if active is None:  # heartbeats go on for the jobs known from before
            return
        ended = [job_id for job_id in expected if self._has_ended(job_id, active)]
        stalled = {id for id, job in active.items() if self.lister.has_stalled(job)}
        unmoved = self._watch.find_unmoved(active)
        wanted = active.keys() if beat_all else unmoved | set(self._schedule.list_received())
        to_beat = [
            job
            for job_id, job in active.items()
            if _can_beat(job) and job_id in wanted and job_id not in stalled
        ]
        now = self._clock.monotonic()
        self._schedule.apply_listing(to_beat, asked_at=asked_at, now=now)
        self._schedule.hold_back([*stalled, *ended])
        with_token = sum(job.has_task_token() for job in active.values())
        self._events.emit(ev.ActiveJobs(with_token, len(active) - with_token))

    def _has_ended(self, job_id: str, active: dict[str, ExportJob]) -> bool:
        """Return whether a job that this process received is not active any more.

        If the listing does not have it, it is read, so that a job is not missed if the index
        is behind, and the end of a job in another process is noticed.
        """
        if job_id in active:
            return False
        try:
            job = self._jobs.find_by_id(job_id)
        except Exception:  # its state is unknown, so nothing changes for it
            return False
        if job is None or job.terminal:
            return True
        active[job_id] = job
        return False

    # -- start and end

    def _emit_started(self) -> None:
        if not self._enabled:
            self._events.emit(ev.OrchestratorDisabled())
            return
        self._events.emit(ev.OrchestratorStarted(self._interval_seconds))
        interval, timeout = self._interval_seconds, self._timeout_seconds
        if timeout is not None and check_interval(interval, timeout).level is not CheckLevel.OK:
            self._events.emit(ev.IntervalTight(interval, timeout))

    def _end(self, wait_seconds: float) -> bool:
        """Stop all threads, and return whether nothing is in flight any more."""
        self._loop.request_stop()
        for cycle in list(self._cycles):
            cycle.ended.set()
        ended = close_all(self._pools, self._clock, wait_seconds)
        self._loop.stop(wait_seconds)
        return ended


def _can_beat(job: ExportJob) -> bool:
    """Return whether an execution waits for the job, as far as its row says."""
    return job.has_task_token() and job.token_closed_at is None


def check_heartbeat_settings(
    interval_seconds: float,
    heartbeat_timeout_seconds: float | None,
    stall_seconds: float | None,
    concurrency: int,
) -> None:
    """Check the settings of an orchestrator. Raises ConfigError."""
    if not interval_seconds > 0:
        raise ConfigError(f"the heartbeat interval must be above 0, not {interval_seconds:g} s")
    if heartbeat_timeout_seconds is not None:
        result = check_interval(interval_seconds, heartbeat_timeout_seconds)
        if result.level is CheckLevel.FAIL:
            raise ConfigError(f"{result.found}; {result.remedy}")
    if stall_seconds is not None and not stall_seconds > 0:
        raise ConfigError(f"stall_seconds must be above 0, not {stall_seconds:g}")
    if concurrency < 1:
        raise ConfigError(f"heartbeats need at least one thread, not {concurrency}")


class ThreadPool:
    """Up to `size` threads, started when there is work for them.

    If a callable raises, the error is logged and nothing else ends.
    """

    def __init__(self, name: str, size: int = 1) -> None:
        self._name = name
        self._size = size
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._load = 0  # submitted and not finished
        self._closed = False
        self._idle = Event()
        self._idle.set()
        self._lock = Lock()

    def submit(self, work: Work) -> bool:
        """Queue a callable. Returns False if the pool is closed or no thread can start."""
        with self._lock:
            if self._closed:
                return False
            if len(self._threads) < min(self._load + 1, self._size):
                self._start_thread()
            if not self._threads:
                return False
            self._load += 1
            self._idle.clear()
            self._queue.put(work)
        return True

    @property
    def load(self) -> int:
        """The number of callables that are submitted and not finished."""
        return self._load

    def close(self) -> None:
        """Drop the callables that have not begun; those that run finish by themselves.

        Call it once.
        """
        with self._lock:
            self._closed = True
            with suppress(Empty):
                while True:
                    self._queue.get_nowait()
                    self._reduce_load()
            for _ in self._threads:
                self._queue.put(None)

    def wait(self, clock: Clock, seconds: float) -> bool:
        """Wait after `close` until the threads have ended; return whether they did.

        Returns False at once in a thread of this pool, because that would wait for itself.
        """
        if current_thread() in self._threads or not clock.wait(self._idle, seconds):
            return False
        for thread in self._threads:
            thread.join()
        return True

    def _start_thread(self) -> None:
        thread = Thread(
            target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread can be started; the existing ones do the work
            _log.warning("%s has no more than %d threads", self._name, len(self._threads))
            return
        self._threads.append(thread)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:  # a bug in one callable must not end the thread for the others
                _log.exception("work of %s failed", self._name)
            finally:
                with self._lock:
                    self._reduce_load()

    def _reduce_load(self) -> None:
        self._load -= 1
        if self._load == 0:
            self._idle.set()


def close_all(pools: Sequence[ThreadPool], clock: Clock, seconds: float) -> bool:
    """Close the pools and wait so long for all together; return whether all have ended."""
    for pool in pools:
        pool.close()
    until = clock.monotonic() + seconds
    ended = [pool.wait(clock, max(0.0, until - clock.monotonic())) for pool in pools]
    return all(ended)
