"""One job from its message to its answer; every line may be the last one this process runs.

    asked ─▶ beaten at once ─▶ stored, or found ─▶ tasks stored ─▶ DOWNLOADING ─▶ sealed
          ─▶ worked on ─▶ outcome ─▶ told ─▶ terminal

A message that comes again finds how far the last one came and goes on from there: storing
a task twice is once, sealing twice is once, and what is terminal only repeats its answer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import Protocol

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events
from holdfast.jobs.dispatcher import TaskDispatcher, decided
from holdfast.jobs.errors import (
    AlreadySealed,
    InvalidJob,
    JobClosed,
    JobExists,
    JobNotFound,
    TokenClosed,
)
from holdfast.jobs.events import JobResumed, JobStarted
from holdfast.jobs.model import ExportJob, ExportTask, JobError, JobStatus, TaskToken
from holdfast.jobs.ports import JobStateRepository, StepFunctions
from holdfast.jobs.request import JobRequest, TaskSpec, tasks_of
from holdfast.jobs.tracker import JobTracker, send_answer

Listing = Callable[[JobRequest], Iterable[TaskSpec]]

_LOOK_SECONDS = 0.25
_PAUSE_SECONDS = 1.0  # between two looks at a job that somebody else is about to finish


class JobHeartbeats(Protocol):
    """What a job needs of the orchestrator."""

    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


class JobRunner:
    """Runs jobs, one per calling thread. Two calls for one job take turns."""

    def __init__(
        self,
        jobs: JobStateRepository,
        tracker: JobTracker,
        dispatcher: TaskDispatcher,
        beats: JobHeartbeats,
        listing: Listing,
        step_functions: StepFunctions | None = None,
        *,
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`listing` says which files a job asks for; it raises InvalidJob when there is
        no telling, now or later."""
        self._jobs = jobs
        self._tracker = tracker
        self._dispatcher = dispatcher
        self._beats = beats
        self._listing = listing
        self._step_functions = step_functions
        self._events = Events() if events is None else events
        self._clock = clock
        self._turns = _Turns()

    def run(
        self,
        request: JobRequest,
        *,
        lost: Event,
        leave: Callable[[], bool] = lambda: False,
        moved: Callable[[ExportJob], None] = lambda job: None,
    ) -> ExportJob:
        """Work on the job until it is terminal and whoever waits for it was told.

        Ends early, with a job that is not terminal, when `lost` is set or `leave()` says
        so. Raises InvalidJob for a token nobody here can answer, StoreUnavailable,
        CallbackRefused or CallbackUnclear: ask again later.
        """
        if request.token is not None and self._step_functions is None:
            raise InvalidJob(
                "the job has a task token, and Step Functions is not configured here"
            )
        asked = request.job(self._clock.time())
        if asked.has_task_token():
            # Before anything else: the clock of the state machine runs since the message
            # was sent, and the message may have waited.
            self._beats.beat_now(asked)
        try:
            # Before its turn: whoever has it now answers to this token from here on.
            job = self._admitted(asked)
            with self._turns.of(request.job_id, lambda: lost.is_set() or leave(), lost) as mine:
                if not mine:
                    return job
                fresh = job is asked
                return self._run(self._read(job.job_id), fresh, request, lost, leave, moved)
        finally:
            self._beats.forget(request.job_id)

    def _run(
        self,
        job: ExportJob,
        fresh: bool,
        request: JobRequest,
        lost: Event,
        leave: Callable[[], bool],
        moved: Callable[[ExportJob], None],
    ) -> ExportJob:
        answers_us = job.task_token == request.token
        if not decided(job):
            job = self._sealed(job, request, fresh=fresh)
        job = self._dispatcher.run(job, lost=lost, leave=leave, moved=moved)
        job = self._told(job, lost, leave)
        if job.terminal and request.token is not None and not answers_us:
            self._repeat_answer(job, request)
        return job

    # -- the start

    def _admitted(self, asked: ExportJob) -> ExportJob:
        """The job as it is stored, and answering to the token that was asked with."""
        try:
            self._jobs.save(asked)
        except JobExists:
            return self._found(asked)
        self._events.emit(JobStarted(asked.job_id, asked.has_task_token()))
        return asked

    def _found(self, asked: ExportJob) -> ExportJob:
        job = self._jobs.find_by_id(asked.job_id)
        if job is None:
            raise JobNotFound(f"job {asked.job_id!r} was deleted a moment ago")
        self._events.emit(JobResumed(job.job_id, job.status))
        if decided(job):
            return job
        if asked.task_token is not None and asked.task_token != job.task_token:
            job = self._taken_over(job, asked)
        # It waited for somebody to come back; that is over.
        self._jobs.note_progress(job.job_id)
        return job

    def _taken_over(self, job: ExportJob, asked: ExportJob) -> ExportJob:
        """Another execution asks for a job that runs: it has the job from now on, unless it
        had it before: then its message came again, and the other one keeps it.

        The row changes first, who lost it is told afterwards. The other way round, a
        heartbeat in between would find the row's own token closed and fail the job. Who
        dies in between leaves the loser to its message, or to its own timeout.
        """
        assert asked.task_token is not None
        if not self._waits(asked.task_token):
            return job
        try:
            taken = self._jobs.attach_token(job.job_id, asked.task_token)
        except JobClosed:  # decided a moment ago: the answer is repeated to us
            return self._read(job.job_id)
        ours = taken.task_token == asked.task_token
        self._tell_superseded(taken.job_id, job.task_token if ours else asked.task_token)
        return taken

    def _tell_superseded(self, job_id: str, token: TaskToken | None) -> None:
        if token is not None and self._step_functions is not None:
            with suppress(TokenClosed):
                self._step_functions.send_task_failure(
                    token, "Superseded", f"another execution took over job {job_id}"
                )

    def _waits(self, token: TaskToken) -> bool:
        assert self._step_functions is not None
        try:
            self._step_functions.send_task_heartbeat(token)
        except TokenClosed:
            return False
        return True

    def _sealed(self, job: ExportJob, request: JobRequest, *, fresh: bool) -> ExportJob:
        if not job.sealed:
            try:
                total = self._store_tasks(job, request, fresh=fresh)
                self._jobs.update_job_status(job.job_id, JobStatus.DOWNLOADING)
                return self._tracker.seal(job.job_id, total)
            except InvalidJob as problem:
                return self._tracker.fail(job.job_id, JobError("InvalidJob", str(problem)))
            except (AlreadySealed, JobClosed):  # somebody else has this job, too
                job = self._read(job.job_id)
        if decided(job):
            return job
        # Somebody died between the last count and the outcome, or has it still.
        return self._tracker.complete(job.job_id)

    def _store_tasks(self, job: ExportJob, request: JobRequest, *, fresh: bool) -> int:
        specs = request.tasks if request.tasks is not None else self._listing(request)
        listed = 0

        def counted() -> Iterator[ExportTask]:
            nonlocal listed
            for task in tasks_of(job.job_id, specs):
                listed += 1
                yield task

        self._jobs.add_tasks(job.job_id, counted())
        # Somebody who died may have stored tasks of a list that was another one then.
        return listed if fresh else self._stored(job.job_id)

    def _stored(self, job_id: str) -> int:
        count, after = 0, None
        while page := self._jobs.tasks(job_id, after=after):
            count, after = count + len(page), page[-1].task_id
        return count

    # -- the end

    def _told(self, job: ExportJob, lost: Event, leave: Callable[[], bool]) -> ExportJob:
        """Until the answer is out; the tracker may have to try more than once."""
        while decided(job) and not (job.terminal or lost.is_set() or leave()):
            job = self._tracker.complete(job.job_id)
            if not job.terminal:
                self._clock.wait(lost, _PAUSE_SECONDS)
        return job

    def _repeat_answer(self, job: ExportJob, request: JobRequest) -> None:
        assert self._step_functions is not None
        assert request.token is not None
        with suppress(TokenClosed):  # it was told before; the message came once more
            send_answer(self._step_functions, request.token, job)

    def _read(self, job_id: str) -> ExportJob:
        job = self._jobs.find_by_id(job_id)
        if job is None:
            raise JobNotFound(f"there is no job {job_id!r}")
        return job


class _Turns:
    """One job, one thread of this process: a message that comes twice waits for the first.

    It may be the same message, lost and received again: its first run is about to end.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy: set[str] = set()

    @contextmanager
    def of(self, job_id: str, give_up: Callable[[], bool], pause: Event) -> Iterator[bool]:
        while not self._take(job_id):
            if give_up():
                yield False
                return
            pause.wait(_LOOK_SECONDS)
        try:
            yield True
        finally:
            with self._lock:
                self._busy.discard(job_id)

    def _take(self, job_id: str) -> bool:
        with self._lock:
            if job_id in self._busy:
                return False
            self._busy.add(job_id)
            return True
