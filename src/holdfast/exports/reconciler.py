"""The reconciler finishes what crashed processes left unfinished. Any process may run it.

    all counted, no outcome        ─▶ outcome, callback
    outcome, callback pending      ─▶ callback
    token closed, no other in time ─▶ failed
    no progress for stall_seconds  ─▶ failed, even if heartbeats are sent for it

A process that runs such a job reads its row and stops (TaskDispatcher). A pass repeats nothing
that was done, so any number of processes may run one at once.

The reconciler and the heartbeats list the active jobs in the same way. A job without progress
since the last listing may have lost its process, so others send its heartbeats. A job without
progress for `stall_seconds` is stalled: it gets no heartbeats, and the reconciler fails it.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Protocol

from holdfast.events import Events
from holdfast.exports.events import ActiveJobsUnknown, JobNotReconciled
from holdfast.exports.model import ACTIVE, CallbackState, ExportJob, JobStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.settings import RETRY_GRACE_SECONDS
from holdfast.exports.tracker import JobTracker
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock


class ActiveJobReader(Protocol):
    """The part of the job store that heartbeats use. It can only read.

    Every JobStateRepository is an ActiveJobReader.
    """

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the job, or None if there is none."""

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs of that status."""


class ActiveJobLister:
    """Lists the active jobs, for a component that lists them every `interval_seconds`.

    A job is stalled if it made no progress for `stall_seconds`. Progress is noted by the wall
    clock, which other hosts share. If that clock is set forward, every job would seem stalled
    at once, so each job then gets the whole time again.
    """

    def __init__(
        self,
        jobs: ActiveJobReader,
        events: Events,
        clock: Clock,
        *,
        stall_seconds: float | None,
        interval_seconds: float,
    ) -> None:
        self._jobs = jobs
        self._events = events
        self._clock = clock
        self._stall_seconds = stall_seconds
        self._max_clock_jump_seconds = 2 * interval_seconds
        self._max_quiet_seconds = interval_seconds / 2  # of a job that is new here
        self._seen_at: tuple[float, float] | None = None  # wall, monotonic
        self._not_before = 0.0
        self._failed_in_a_row = 0
        self._last_listing: tuple[float, dict[str, ExportJob]] = (-inf, {})
        self.unmoved: set[str] = set()
        """The ids of the jobs that made no progress from one listing to the next."""

    def list(self, *, max_age_seconds: float = 0.0) -> dict[str, ExportJob] | None:
        """Return the active jobs by id, or None if the store does not respond.

        If the last listing is younger than `max_age_seconds`, it is returned again.
        """
        self._check_clock()
        asked_at = self._clock.monotonic()
        listed_at, listed = self._last_listing
        if asked_at - listed_at < max_age_seconds:
            return dict(listed)
        try:
            # In this order, a job that moves on between the calls is in both listings. In
            # the opposite order it could be in neither.
            active = {
                job.job_id: job
                for status in ACTIVE
                for job in self._jobs.find_by_status(status)
                if not job.terminal
            }
        except Exception as error:
            self._failed_in_a_row += 1
            name = type(error).__name__
            self._events.emit(ActiveJobsUnknown(name, self._failed_in_a_row))
            return None
        self._failed_in_a_row = 0
        self.unmoved = set(self._find_unmoved(listed, active.values()))
        self._last_listing = asked_at, active
        return dict(active)

    def _find_unmoved(
        self, before: Mapping[str, ExportJob], jobs: Iterable[ExportJob]
    ) -> Iterator[str]:
        """Yield the ids of the jobs without progress since the listing before.

        The time of progress is only compared with the one before, for being the same. So it
        does not matter how far the clocks of two hosts differ. Only a job that is listed for
        the first time is judged by this host's clock. If the clocks differ, it is found one
        listing later, or gets heartbeats until then although its process lives.
        """
        quiet_since = self._clock.time() - self._max_quiet_seconds
        for job in jobs:
            known, at = before.get(job.job_id), job.last_progress_at
            if known.last_progress_at == at if known is not None else at <= quiet_since:
                yield job.job_id

    def measure_stall(self, job: ExportJob) -> float | None:
        """Return for how many seconds the job has stalled, or None if it has not."""
        if self._stall_seconds is None:
            return None
        seconds = self._clock.time() - max(job.last_progress_at, self._not_before)
        return seconds if seconds > self._stall_seconds else None

    def has_stalled(self, job: ExportJob) -> bool:
        """Return whether a listed job has stalled, also if it is read again.

        The listing may be behind, and missing beats end the job. If the job cannot be read,
        it gets its heartbeat and is checked in the next cycle.
        """
        if self.measure_stall(job) is None:
            return False
        try:
            stored = self._jobs.find_by_id(job.job_id)
        except Exception:
            return False
        if stored is None or stored.terminal:
            return False
        return self.measure_stall(stored) is not None

    def _check_clock(self) -> None:
        """Notice that the wall clock was set since the last listing."""
        wall, monotonic = self._clock.time(), self._clock.monotonic()
        if self._seen_at is not None:
            jump = (wall - self._seen_at[0]) - (monotonic - self._seen_at[1])
            if jump > self._max_clock_jump_seconds:
                self._not_before = wall
        self._seen_at = wall, monotonic


class Reconciler:
    """Checks all active jobs every `interval_seconds`."""

    def __init__(
        self,
        jobs: JobStateRepository,
        tracker: JobTracker,
        *,
        lister: ActiveJobLister | None = None,
        stall_seconds: float | None = 3600.0,
        retry_grace_seconds: float = RETRY_GRACE_SECONDS,
        interval_seconds: float = 30.0,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a reconciler.

        A job whose token was found closed has `retry_grace_seconds` to get another one.

        If another component lists the jobs regularly with `lister`, its last listing is used,
        because each listing reads every active job. Each step reads its job again.
        """
        self._tracker = tracker
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
        active = self._lister.list(max_age_seconds=self._max_age_seconds)
        for job in (active or {}).values():
            try:
                self._reconcile(job)
            except Exception as error:  # one job's error does not stop the pass
                self._events.emit(JobNotReconciled(job.job_id, type(error).__name__))

    def _reconcile(self, job: ExportJob) -> None:
        if job.all_counted or job.callback.state is CallbackState.PENDING:
            self._tracker.complete(job.job_id)
        elif self._has_waited_for_token(job):
            self._tracker.fail_closed(job, self._retry_grace_seconds)
        elif (stalled_seconds := self._lister.measure_stall(job)) is not None:
            self._tracker.fail_stalled(job, stalled_seconds)

    def _has_waited_for_token(self, job: ExportJob) -> bool:
        if job.token_closed_at is None:
            return False
        return self._clock.time() - job.token_closed_at >= self._retry_grace_seconds
