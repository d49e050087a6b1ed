"""The heartbeat orchestrator keeps Step Functions waiting for every job that makes progress.

    loop ──┬─ each half ─────▶ lister ──▶ schedule        jobs that no process works on
           │  of an interval   (own thread)
           └─ what is due ───▶ senders ─┬─ accepted ▶ schedule, an interval later
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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from math import inf
from threading import Lock
from typing import Any

from holdfast.doctor.checks import CheckLevel
from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.exports import events as ev
from holdfast.exports.errors import CallbackRefused, JobNotFound, TokenClosed
from holdfast.exports.heartbeat_schedule import Heartbeat, HeartbeatSchedule
from holdfast.exports.model import ExportJob
from holdfast.exports.ports import StepFunctions
from holdfast.exports.reconciler import ActiveJobLister, ActiveJobReader
from holdfast.exports.settings import check_interval
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("holdfast")

_MAX_WAIT_SECONDS = 1.0  # so that heartbeats go on soon after the machine was suspended
_STOP_CHECK_SECONDS = 0.1  # how soon a triggered cycle notices a stop


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
        self._loop = BackgroundLoop(
            "holdfast-heartbeats", self.tick, clock, max_wait_seconds=_MAX_WAIT_SECONDS
        )
        self._schedule = HeartbeatSchedule(interval_seconds, self._loop.wake)
        self._senders = ThreadPoolExecutor(concurrency, "holdfast-heartbeat")
        self._listers = ThreadPoolExecutor(1, "holdfast-active-jobs")
        self._closers = ThreadPoolExecutor(1, "holdfast-token-closed")
        self._pools = self._listers, self._senders, self._closers
        self._calls: set[Future[None]] = set()  # submitted and not done
        self._listing: Future[None] | None = None  # the last one
        self._list_at = clock.monotonic()
        self._started = self._stopped = False
        self._lock = Lock()

    # -- it starts once and stops once

    @property
    def running(self) -> bool:
        """Whether the orchestrator was started and not stopped."""
        return self._enabled and self._started and not self._stopped

    @property
    def in_flight(self) -> int:
        """The number of heartbeats, listings and `token_closed` calls that are not done."""
        return len(self._calls)

    def start(self) -> None:
        """Start the loop in the background. Does nothing if it was started or stopped."""
        with self._lock:
            if self._started or self._stopped:
                return
            if self._enabled:
                # Each pool has a thread from now on. If there are too few for all calls later,
                # that one makes the calls that wait.
                for pool in self._pools:
                    pool.submit(int)
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
            self._events.emit(ev.OrchestratorStopping(len(self._schedule.list_in_flight())))
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
        if (listing := self._submit(self._listers, self._list_jobs, True)) is None:
            return 0
        self._wait_for([listing])
        heartbeats = self._schedule.take_due(inf)
        results = self._schedule.list_in_flight()
        self._send_all(heartbeats)
        self._wait_for(results)
        return sum(result.result() for result in results if result.done())

    def _wait_for(self, futures: Iterable[Future[Any]]) -> None:
        while not self._stopped and wait(futures, _STOP_CHECK_SECONDS).not_done:
            pass

    # -- the loop

    def tick(self) -> float:
        """Run one pass: list the jobs if it is time, and send the due heartbeats.

        Returns when the next pass is due, by the monotonic clock.
        """
        now = self._clock.monotonic()
        if now >= self._list_at:
            self._list_at = now + self._interval_seconds / 2
            if self._listing is None or self._listing.done():  # two must not run at once
                self._listing = self._submit(self._listers, self._list_jobs, False)
        self._send_all(self._schedule.take_due(now))
        return min(self._list_at, self._schedule.await_next())

    def _submit(
        self, threads: ThreadPoolExecutor, call: Callable[..., None], *arguments: Any
    ) -> Future[None] | None:
        """Have a thread make the call.

        Returns None if the orchestrator is stopped, or if no thread could be started. In the
        second case the call waits for a thread that runs.
        """
        try:
            future = threads.submit(call, *arguments)
        except RuntimeError:
            return None
        self._calls.add(future)
        future.add_done_callback(self._end_call)
        return future

    def _end_call(self, future: Future[None]) -> None:
        self._calls.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            _log.error("a call of the heartbeats failed", exc_info=error)

    def _send_all(self, heartbeats: Iterable[Heartbeat]) -> None:
        for heartbeat in heartbeats:
            self._submit(self._senders, self._send, heartbeat)

    def _send(self, heartbeat: Heartbeat) -> None:
        if not heartbeat.wanted:  # it was dropped while it waited for a thread
            self._reschedule(heartbeat, None)
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
            self._reschedule(heartbeat, began_at, failed=error is not None, refused=refused)
            return
        # Handled in another thread, because that reads and writes the store, and the threads
        # that send are few.
        arguments = heartbeat, job, error.code, began_at, seconds
        if self._submit(self._closers, self._handle_closed, *arguments) is None:
            self._emit_result(job, error.code, seconds)

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
        self,
        heartbeat: Heartbeat,
        job: ExportJob,
        code: str,
        began_at: float,
        seconds: float,
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
                with suppress(JobNotFound):  # not stored yet; the runner's next heartbeat tells
                    self._token_closed(job, code)
                self._schedule.drop_token(job)
        finally:
            self._reschedule(heartbeat, began_at, failed=needs_second)

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
        heartbeat: Heartbeat,
        sent_at: float | None,
        *,
        failed: bool = False,
        refused: bool = False,
    ) -> None:
        now = self._clock.monotonic()
        self._schedule.reschedule(
            heartbeat, now, sent_at=sent_at, failed=failed, refused=refused
        )

    # -- one listing

    def _list_jobs(self, beat_all: bool) -> None:
        asked_at = self._clock.monotonic()
        active = self.lister.list()
        if active is None:  # heartbeats go on for the jobs known from before
            return
        stalled = {id for id, job in active.items() if self.lister.has_stalled(job)}
        own = self._schedule.list_received()
        wanted = active.keys() if beat_all else self.lister.unmoved.union(own)
        to_beat = [
            job
            for job_id, job in active.items()
            if _can_beat(job) and job_id in wanted and job_id not in stalled
        ]
        now = self._clock.monotonic()
        self._schedule.apply_listing(to_beat, active, asked_at=asked_at, now=now)
        with_token = sum(job.has_task_token() for job in active.values())
        self._events.emit(ev.ActiveJobs(with_token, len(active) - with_token))

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
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        has_ended = not wait(self._calls.copy(), wait_seconds).not_done
        for pool in self._pools:
            pool.shutdown(wait=has_ended)
        self._loop.stop(wait_seconds)
        return has_ended


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
