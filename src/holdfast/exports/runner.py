"""Run one job from its message to its outcome. The process may crash after any line.

    requested ─▶ heartbeat at once ─▶ stored or resumed ─▶ tasks stored ─▶ DOWNLOADING
              ─▶ sealed ─▶ worked on ─▶ outcome decided ─▶ outcome sent ─▶ terminal

If the message is delivered again, the runner reads from the store how far the job is and
goes on from there. Storing a task twice or sealing twice has no further effect, and a job
that is terminal only sends its outcome again.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import Protocol

from holdfast.events import Events
from holdfast.exports.dispatcher import TaskDispatcher
from holdfast.exports.errors import (
    AlreadySealed,
    IllegalTransition,
    InvalidJob,
    JobClosed,
    JobExists,
    TokenClosed,
)
from holdfast.exports.events import JobResumed, JobStarted
from holdfast.exports.model import ExportJob, ExportTask, JobError, JobStatus, TaskToken
from holdfast.exports.ports import JobStateRepository, StepFunctions
from holdfast.exports.request import JobRequest, TaskSpec, build_tasks
from holdfast.exports.tracker import JobTracker, require_job, send_outcome
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

Listing = Callable[[JobRequest], Iterable[TaskSpec]]

_LOCK_POLL_SECONDS = 0.25
# Between two reads of a job that another process is about to finish, and before a refusal of a
# token is checked.
_PAUSE_SECONDS = 1.0


class JobHeartbeats(Protocol):
    """The part of the orchestrator that a job uses."""

    def beat_now(self, job: ExportJob) -> None:
        """Send a heartbeat for the job at once, and then regularly."""

    def forget(self, job_id: str) -> None:
        """Send no more heartbeats for the job."""


class NoHeartbeats:
    """Replaces the orchestrator where Step Functions is not configured.

    The runner refuses jobs with a token there.
    """

    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


class JobRunner:
    """Runs jobs, one per calling thread. Two calls for the same job run one after the other."""

    def __init__(
        self,
        jobs: JobStateRepository,
        tracker: JobTracker,
        dispatcher: TaskDispatcher,
        heartbeats: JobHeartbeats,
        listing: Listing,
        step_functions: StepFunctions | None = None,
        *,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a runner; `listing` returns the files that a job requests.

        `listing` raises InvalidJob if the files cannot be listed, now or later.
        """
        self._jobs = jobs
        self._tracker = tracker
        self._dispatcher = dispatcher
        self._heartbeats = heartbeats
        self._listing = listing
        self._step_functions = step_functions
        self._events = Events() if events is None else events
        self._clock = clock
        # Each job's lock, and the number of runs that hold it or wait for it.
        self._runs: dict[str, tuple[Lock, int]] = {}
        self._runs_lock = Lock()

    def run(
        self,
        request: JobRequest,
        *,
        lost: Event,
        should_leave: Callable[[], bool] = lambda: False,
        on_progress: Callable[[ExportJob], None] = lambda job: None,
    ) -> ExportJob:
        """Work on the job until it is terminal and its outcome was sent, and return it.

        Returns early, with a job that is not terminal, if `lost` is set or
        `should_leave()` is true. Raises InvalidJob if the job has a token and Step
        Functions is not configured. Raises StoreUnavailable, CallbackRefused or
        CallbackUnclear if the caller should try again later.
        """
        if request.token is not None and self._step_functions is None:
            raise InvalidJob(
                "the job has a task token, and Step Functions is not configured here"
            )
        requested = request.to_job(self._clock.time())
        if requested.has_task_token():
            # Before anything else, because the state machine's timeout has been running
            # since the message was sent, and the message may have waited in the queue.
            self._heartbeats.beat_now(requested)

        with self._enter(request.job_id) as lock:
            # Before taking the lock, so that a thread that already runs this job sends its
            # outcome to this token.
            job = self._admit(requested)
            while not lock.acquire(timeout=_LOCK_POLL_SECONDS):
                if lost.is_set() or should_leave():
                    return job
            try:
                fresh = job is requested
                job = require_job(self._jobs, job.job_id)
                self._heartbeats.beat_now(job)  # the row may have another token
                return self._run(job, fresh, request, lost, should_leave, on_progress)
            finally:
                lock.release()

    @contextmanager
    def _enter(self, job_id: str) -> Iterator[Lock]:
        """Lend the job's lock, with which its runs in this process follow each other.

        A second run may have the same message, lost and received again, while the first one
        is ending. After the last run, the job gets no more heartbeats.
        """
        with self._runs_lock:
            lock, runs = self._runs.get(job_id, (Lock(), 0))
            self._runs[job_id] = lock, runs + 1
        try:
            yield lock
        finally:
            with self._runs_lock:
                lock, runs = self._runs.pop(job_id)
                if runs > 1:
                    self._runs[job_id] = lock, runs - 1
                else:
                    self._heartbeats.forget(job_id)

    def _run(
        self,
        job: ExportJob,
        fresh: bool,
        request: JobRequest,
        lost: Event,
        should_leave: Callable[[], bool],
        on_progress: Callable[[ExportJob], None],
    ) -> ExportJob:
        has_our_token = job.task_token == request.token
        if not job.is_decided:
            job = self._seal(job, request, fresh=fresh)
        job = self._dispatcher.run(
            job, lost=lost, should_leave=should_leave, on_progress=on_progress
        )
        job = self._deliver_outcome(job, lost, should_leave)
        if job.terminal and request.token is not None and not has_our_token:
            self._repeat_outcome(job, request)
        return job

    # -- the start

    def _admit(self, requested: ExportJob) -> ExportJob:
        """Return the stored job; the requested token gets its outcome, if that is possible."""
        try:
            self._jobs.save(requested)
        except JobExists:
            return self._resume(requested)
        self._events.emit(JobStarted(requested.job_id, requested.has_task_token()))
        return requested

    def _resume(self, requested: ExportJob) -> ExportJob:
        job = require_job(self._jobs, requested.job_id)
        self._events.emit(JobResumed(job.job_id, job.status))
        token = requested.task_token
        can_reopen = job.can_reopen and token is not None and not job.has_seen(token)
        if job.is_decided and not can_reopen:
            return job
        if token is not None and token != job.task_token:
            job = self._take_over(job, token)
        # The job may have waited long for this message, and that is not a stall.
        self._jobs.note_progress(job.job_id)
        return job

    def _take_over(self, job: ExportJob, token: TaskToken) -> ExportJob:
        """Give the job to the execution that requests it now, and return the job.

        If that execution had the job before, this is its old message delivered again, and
        the other execution keeps the job. A job that failed only because its token was
        closed is reopened.

        The row changes first, and the superseded execution is notified afterwards. In the
        opposite order, a heartbeat in between would find the row's own token closed, and
        the job would be waiting for a token. If this process crashes in between, the
        superseded execution is notified when its own message is delivered again, or it
        times out.
        """
        if not (job.has_seen(token) or self._is_open(token)):
            return job
        try:
            taken = self._jobs.attach_token(job.job_id, token)
        except JobClosed:  # decided a moment ago, so the outcome is repeated to this token
            return require_job(self._jobs, job.job_id)
        has_new_token = taken.task_token == token
        if has_new_token:  # the thread that runs the job here may hold its lock for long
            self._heartbeats.beat_now(taken)
        self._fail_superseded(taken.job_id, job.task_token if has_new_token else token)
        return taken

    def _fail_superseded(self, job_id: str, token: TaskToken | None) -> None:
        if token is not None and self._step_functions is not None:
            with suppress(TokenClosed):
                self._step_functions.send_task_failure(
                    token, "Superseded", f"another execution took over job {job_id}"
                )

    def _is_open(self, token: TaskToken) -> bool:
        """Return whether an execution waits for the token. Only a second refusal decides."""
        assert self._step_functions is not None
        with suppress(TokenClosed):
            self._step_functions.send_task_heartbeat(token)
            return True
        self._clock.sleep(_PAUSE_SECONDS)
        with suppress(TokenClosed):
            self._step_functions.send_task_heartbeat(token)
            return True
        return False

    def _seal(self, job: ExportJob, request: JobRequest, *, fresh: bool) -> ExportJob:
        if not job.sealed:
            try:
                total = self._store_tasks(job, request, fresh=fresh)
                self._jobs.update_job_status(job.job_id, JobStatus.DOWNLOADING)
                return self._tracker.seal(job.job_id, total)
            except InvalidJob as problem:
                return self._tracker.fail(job.job_id, JobError("InvalidJob", str(problem)))
            except (AlreadySealed, IllegalTransition, JobClosed):
                # Another process works on this job, too.
                job = require_job(self._jobs, job.job_id)
        if job.is_decided:
            return job
        # A process crashed between the last count and the outcome, or still works on it.
        return self._tracker.complete(job.job_id)

    def _store_tasks(self, job: ExportJob, request: JobRequest, *, fresh: bool) -> int:
        specs = request.tasks if request.tasks is not None else self._listing(request)
        listed = 0

        def count_tasks() -> Iterator[ExportTask]:
            nonlocal listed
            for task in build_tasks(job.job_id, specs):
                listed += 1
                yield task

        self._jobs.add_tasks(job.job_id, count_tasks())
        # A process that crashed may have stored tasks of a list that has changed since, so
        # only a fresh job has exactly the tasks that were listed now.
        return listed if fresh else self._count_stored_tasks(job.job_id)

    def _count_stored_tasks(self, job_id: str) -> int:
        count, after = 0, None
        while page := self._jobs.tasks(job_id, after=after):
            count, after = count + len(page), page[-1].task_id
        return count

    # -- the end

    def _deliver_outcome(
        self, job: ExportJob, lost: Event, should_leave: Callable[[], bool]
    ) -> ExportJob:
        """Repeat until the outcome is sent; the tracker may need more than one attempt."""
        while job.is_decided and not (job.terminal or lost.is_set() or should_leave()):
            job = self._tracker.complete(job.job_id)
            if not job.terminal:
                self._clock.wait(lost, _PAUSE_SECONDS)
        return job

    def _repeat_outcome(self, job: ExportJob, request: JobRequest) -> None:
        assert self._step_functions is not None
        assert request.token is not None
        if job.can_reopen:
            # The failure means another token. If an execution waits for this one in spite of
            # two refusals, it times out, and its next token reopens the job.
            return
        with suppress(TokenClosed):  # the token has the outcome; its message came once more
            send_outcome(self._step_functions, request.token, job)
