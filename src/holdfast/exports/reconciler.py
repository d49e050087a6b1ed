"""The reconciler finishes what crashed processes left unfinished. Any process may run it.

    all counted, no outcome        ─▶ outcome, callback
    outcome, callback pending      ─▶ callback
    no progress for stall_seconds  ─▶ failed, even if heartbeats are sent for it
    runs here, ended elsewhere     ─▶ stopped here

A pass repeats nothing that was done, so any number of processes may run one at once.
"""

from collections.abc import Callable, Iterable
from functools import partial

from holdfast.core.background import BackgroundLoop
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events
from holdfast.jobs.active_jobs import ActiveJobLister
from holdfast.jobs.events import JobNotReconciled
from holdfast.jobs.model import CallbackState, ExportJob
from holdfast.jobs.ports import JobStateRepository
from holdfast.jobs.tracker import JobTracker


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
        interval_seconds: float = 30.0,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a reconciler.

        `running()` returns the ids of the jobs that run here; `cancel(job_id, code)` stops one.
        If another component lists the jobs regularly with `lister`, its last listing is used,
        because each listing reads every active job. Each step reads its job again.
        """
        self._jobs = jobs
        self._tracker = tracker
        self._running = running
        self._cancel = cancel
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
            return
        stalled_seconds = self._lister.measure_stall(job)
        if stalled_seconds is None:
            return
        job = self._tracker.fail_stalled(job, stalled_seconds)
        if job.callback.state is not CallbackState.NONE:
            self._cancel(job.job_id, "JobStalled")

    def _cancel_if_ended(self, job_id: str) -> None:
        job = self._jobs.find_by_id(job_id)
        if job is None or job.terminal:
            self._cancel(job_id, "EndedElsewhere")
