"""From the last result to the answer: one outcome, told once.

    results ─▶ counted ─┐
    seal ───────────────┴▶ all counted? ─▶ claim_outcome   one caller wins
    stalled, invalid … ──────────────────▶ give_up         the same, without waiting
                                             │
                              callback pending: the outbox
                                             │
             begin_callback ─▶ SendTaskSuccess or SendTaskFailure ─▶ settle
                    ▲                        │
                    └── end_callback ◀── no answer, or refused: tried again

Whatever dies in between leaves a state from which `complete` goes on, in any process: all
counted and no outcome, or an outcome whose callback is pending. The reconciler sees to it.
"""

from collections.abc import Sequence

from holdfast.core.events import Events
from holdfast.jobs.errors import (
    CallbackRefused,
    CallbackUnclear,
    JobClosed,
    JobNotFound,
    TokenClosed,
)
from holdfast.jobs.events import (
    CallbackFailed,
    CallbackSent,
    JobFinished,
    JobSealed,
    JobStalled,
    StepFunctionsTimedOut,
    TaskCompleted,
    TaskFailed,
)
from holdfast.jobs.model import (
    CallbackState,
    ExportJob,
    JobError,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.jobs.ports import JobStateRepository, StepFunctions

# Somebody who died while sending is waited for as long as this; a living one is done well
# before, for the client gives up after a few seconds.
_AGAIN_AFTER_SECONDS = 20.0


class JobTracker:
    """Counts results and sees each job to its answer. Safe for threads and processes."""

    def __init__(
        self,
        jobs: JobStateRepository,
        step_functions: StepFunctions | None,
        *,
        events: Events | None = None,
        again_after_seconds: float = _AGAIN_AFTER_SECONDS,
    ) -> None:
        """Without Step Functions, jobs that have a token are not answered here."""
        self._jobs = jobs
        self._step_functions = step_functions
        self._events = Events() if events is None else events
        self._again_after_seconds = again_after_seconds

    # -- counting

    def count(self, job_id: str, results: Sequence[TaskResult]) -> ExportJob:
        """Count results and finish the job if they were the last; the job as it is now.

        Results of a closed job are dropped: it says so by being terminal or decided. Also
        when none counted, the job is looked at: whoever counted them may have died before.
        """
        try:
            self._jobs.record_results(job_id, results)
        except JobClosed:
            return self._read(job_id)
        for result in results:
            self._tell(result)
        return self.complete(job_id)

    def seal(self, job_id: str, total_tasks: int) -> ExportJob:
        """These are all tasks. Finishes a job that has none, or whose tasks were quicker."""
        self._jobs.set_total_tasks(job_id, total_tasks)
        self._events.emit(JobSealed(job_id, total_tasks))
        return self.complete(job_id)

    # -- the outcome

    def complete(self, job_id: str) -> ExportJob:
        """Decide the outcome once every task is counted, and tell it."""
        job = self._read(job_id)
        if job.all_counted:
            job = self._jobs.claim_outcome(job_id) or self._read(job_id)
        return self._delivered(job)

    def fail(self, job_id: str, error: JobError) -> ExportJob:
        """Give the job up, unless its outcome is decided, and tell that."""
        job = self._jobs.give_up(job_id, error) or self._read(job_id)
        return self._delivered(job)

    def stalled(self, job: ExportJob, seconds: float) -> ExportJob:
        """No progress for so long, as a listing said that may be old: look again first."""
        now = self._read(job.job_id)
        if now.last_progress_at > job.last_progress_at or now.terminal:
            return now
        self._events.emit(JobStalled(job.job_id, seconds))
        why = f"no task was finished and no byte arrived for {seconds:.0f} s"
        return self.fail(job.job_id, JobError("JobStalled", why))

    def token_closed(self, job: ExportJob, code: str) -> ExportJob:
        """A heartbeat was told that nobody waits for this token: judge by our own books.

        A job that is finished, or about to be, closed it by itself. A job with another
        token by now has somebody who waits. Any other was given up by Step Functions.
        """
        now = self._read(job.job_id)
        if not now.awaits_answer_to(job.task_token):
            return now
        # Told as any other: should another execution take it over at this very moment,
        # that one is answered. To the closed token the answer makes no difference.
        return self.fail(job.job_id, _nobody_waits(code))

    # -- the callback

    def _delivered(self, job: ExportJob) -> ExportJob:
        if job.callback.state is not CallbackState.PENDING:
            return job
        if job.task_token is not None and self._step_functions is None:
            return job  # another host has to
        before = self._jobs.begin_callback(
            job.job_id, again_after_seconds=self._again_after_seconds
        )
        if before is not None:
            self._deliver(before)
        return self._read(job.job_id)

    def _deliver(self, job: ExportJob) -> None:
        callback = job.callback
        status, error = callback.status, callback.error
        try:
            self._answer(job)
        except TokenClosed as closed:
            if not callback.in_doubt:
                # A definite answer to the first attempt: it was not us who closed it.
                self._events.emit(StepFunctionsTimedOut(job.job_id, closed.code))
                if status is JobStatus.COMPLETED:
                    status, error = JobStatus.FAILED, _nobody_waits(closed.code)
        except CallbackRefused as refused:
            self._failed(job, refused, in_doubt=callback.in_doubt)
            return
        except CallbackUnclear as unclear:
            self._failed(job, unclear, in_doubt=True)
            return
        self._settle(job.job_id, status, error)

    def _answer(self, job: ExportJob) -> None:
        if job.task_token is None:
            return
        assert self._step_functions is not None
        send_answer(self._step_functions, job.task_token, job)
        self._events.emit(CallbackSent(job.job_id, job.callback.status))

    def _failed(self, job: ExportJob, error: Exception, *, in_doubt: bool) -> None:
        self._events.emit(CallbackFailed(job.job_id, type(error).__name__))
        self._jobs.end_callback(job.job_id, in_doubt=in_doubt)

    def _settle(self, job_id: str, status: JobStatus, error: JobError | None) -> None:
        if not self._jobs.settle(job_id, status, error):
            return
        state = self._read(job_id).state
        code = None if error is None else error.code
        self._events.emit(
            JobFinished(job_id, status, state.completed_tasks, state.failed_tasks, code)
        )

    def _read(self, job_id: str) -> ExportJob:
        job = self._jobs.find_by_id(job_id)
        if job is None:
            raise JobNotFound(f"there is no job {job_id!r}")
        return job

    def _tell(self, result: TaskResult) -> None:
        if not self._events.listening:
            return
        if result.success:
            done = TaskCompleted(result.job_id, result.task_id, result.bytes_processed)
            self._events.emit(done)
        else:
            code = result.error.code if result.error else "Failed"
            self._events.emit(TaskFailed(result.job_id, result.task_id, code))


def send_answer(step_functions: StepFunctions, token: TaskToken, job: ExportJob) -> None:
    """Tell the holder of a token how the job went, as its callback or its status says."""
    decided = job.callback.state is CallbackState.PENDING
    status = job.callback.status if decided else job.status
    error = job.callback.error if decided else job.error
    if status is JobStatus.COMPLETED:
        output = {
            "jobId": job.job_id,
            "status": "COMPLETED",
            "totalTasks": job.state.total_tasks,
            "completedTasks": job.state.completed_tasks,
        }
        step_functions.send_task_success(token, output)
    else:
        error = error or JobError("JobFailed", "the job failed")
        step_functions.send_task_failure(token, error.code, error.message)


def _nobody_waits(code: str) -> JobError:
    """D-27: the service's code does not tell a timeout from a foreign token."""
    name = "TaskTimedOut" if code == "TaskTimedOut" else "TaskTokenInvalid"
    return JobError(name, f"Step Functions does not wait for this job any more ({code})")
