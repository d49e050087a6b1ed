"""The reconciler finishes what crashed processes left unfinished. Any process may run it.

    all counted, no outcome        ─▶ outcome, callback
    outcome, callback pending      ─▶ callback
    token closed, no other in time ─▶ failed
    no progress for stall_seconds  ─▶ failed, even if heartbeats are sent for it
    runs here, ended elsewhere     ─▶ stopped here

A pass repeats nothing that was done, so any number of processes may run one at once.
"""

from collections.abc import Callable, Iterable
from functools import partial

from holdfast.events import Events
from holdfast.exports.active_jobs import ActiveJobLister
from holdfast.exports.events import JobNotReconciled
from holdfast.exports.heartbeats.interval import RETRY_GRACE_SECONDS
from holdfast.exports.model import CallbackState, ExportJob
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.tracker import JobTracker
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock


class Reconciler:
    """Checks all active jobs every `interval_seconds`."""

    def __init__(
        self,
        jobs: JobStateRepository,
        tracker: JobTracker,
        *,
        running: Callable[[], Iterable[str]] = tuple,
        cancel: Callable[[str, str], None] = lambda job_id, code: None,
        lister: ActiveJobLister | None = None,
        stall_seconds: float | None = 3600.0,
        retry_grace_seconds: float = RETRY_GRACE_SECONDS,
        interval_seconds: float = 30.0,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a reconciler.

        A job whose token was found closed has `retry_grace_seconds` to get another one.

        `running()` returns the ids of the jobs that run here; `cancel(job_id, code)` stops one.
        If another component lists the jobs regularly with `lister`, its last listing is used,
        because each listing reads every active job. Each step reads its job again.
        """
        self._jobs = jobs
        self._tracker = tracker
        self._running = running
        self._cancel = cancel
        self._retry_grace_seconds = retry_grace_seconds
        self._interval_seconds = interval_seconds
        self._events = Events() if events is None else events
        self._max_age_seconds = interval_seconds if lister else 0.0
        self._lister = lister or ActiveJobLister(
            jobs,
            self._events,
            clock,
            stall_seconds=stall_seconds,
            interval_seconds=interval_seconds,
        )
        self._clock = clock
        self._loop = BackgroundLoop("holdfast-reconciler", self._run_pass, clock)

    def start(self) -> None:
        """Start the thread that runs a pass in every interval. Starting twice is safe."""
        self._loop.start()

    def stop(self) -> None:
        """Stop the thread and wait for its last pass."""
        self._loop.stop()

    def _run_pass(self) -> float:
        self.tick()
        return self._clock.monotonic() + self._interval_seconds

    def tick(self) -> None:
        """Run one pass over all active jobs. Never raises."""
        running = list(self._running())
        active = self._lister.list(max_age_seconds=self._max_age_seconds)
        if active is None:  # the next pass tries again
            return
        for job in active.values():
            self._reconcile_safely(job.job_id, partial(self._reconcile, job))
        for job_id in running:
            if job_id not in active:
                self._reconcile_safely(job_id, partial(self._cancel_if_ended, job_id))

    def _reconcile_safely(self, job_id: str, reconcile: Callable[[], None]) -> None:
        """Emit an event instead of raising, so that one job's error does not stop the pass."""
        try:
            reconcile()
        except Exception as error:
            self._events.emit(JobNotReconciled(job_id, type(error).__name__))

    def _reconcile(self, job: ExportJob) -> None:
        if job.all_counted or job.callback.state is CallbackState.PENDING:
            self._tracker.complete(job.job_id)
        elif self._has_waited_for_token(job):
            job = self._tracker.fail_closed(job, self._retry_grace_seconds)
            self._cancel_if_decided(job, "TokenClosed")
        elif (stalled_seconds := self._lister.measure_stall(job)) is not None:
            job = self._tracker.fail_stalled(job, stalled_seconds)
            self._cancel_if_decided(job, "JobStalled")

    def _has_waited_for_token(self, job: ExportJob) -> bool:
        if job.token_closed_at is None:
            return False
        return self._clock.time() - job.token_closed_at >= self._retry_grace_seconds

    def _cancel_if_decided(self, job: ExportJob, code: str) -> None:
        if job.callback.state is not CallbackState.NONE:
            self._cancel(job.job_id, code)

    def _cancel_if_ended(self, job_id: str) -> None:
        job = self._jobs.find_by_id(job_id)
        if job is None or job.terminal:
            self._cancel(job_id, "EndedElsewhere")
