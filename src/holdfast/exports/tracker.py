"""Count results, decide each job's outcome once, and send it to Step Functions.

    results ─▶ counted ─┐
    seal ───────────────┴▶ all counted? ─▶ claim_outcome   one caller wins
    stalled, invalid … ──────────────────▶ give_up         the same, without waiting
                                             │
                              callback pending: the outbox
                                             │
             begin_callback ─▶ SendTaskSuccess or SendTaskFailure ─▶ settle
                    ▲                        │
                    └── end_callback ◀── no response, or refused: tried again

A process that crashes in between leaves a job from which `complete` can go on in any
process: all tasks are counted and there is no outcome, or the outcome's callback is
pending. The reconciler calls `complete` for such jobs.

A closed token does not fail its job at once, because the state's Retry may send another one:

    two heartbeats refused ─▶ noted, work goes on ─┬─ another token ─▶ goes on with it
                                                   └─ none in time ──▶ fail_closed ─▶ FAILED
                        another token, later: reopened, its counters stay ◀─┘
"""

from collections.abc import Sequence

from holdfast.events import Events
from holdfast.exports.errors import (
    CallbackRefused,
    CallbackUnclear,
    JobClosed,
    TokenClosed,
)
from holdfast.exports.events import (
    CallbackFailed,
    CallbackSent,
    JobFinished,
    JobSealed,
    JobStalled,
    StepFunctionsTimedOut,
    TaskCompleted,
    TaskFailed,
)
from holdfast.exports.model import (
    TOKEN_ERRORS,
    CallbackState,
    ExportJob,
    JobError,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.exports.ports import JobStateRepository, StepFunctions
from holdfast.exports.transitions import build_not_found_error

# If a process crashes while it sends, others wait so long before they try. A process that
# lives is done well before, because the client gives up after a few seconds.
_AGAIN_AFTER_SECONDS = 20.0


class JobTracker:
    """Counts results and sends the outcome of each job. Safe for threads and processes."""

    def __init__(
        self,
        jobs: JobStateRepository,
        step_functions: StepFunctions | None,
        *,
        events: Events | None = None,
        again_after_seconds: float = _AGAIN_AFTER_SECONDS,
    ) -> None:
        """Create a tracker. Without Step Functions, jobs that have a token are not settled."""
        self._jobs = jobs
        self._step_functions = step_functions
        self._events = Events() if events is None else events
        self._again_after_seconds = again_after_seconds

    # -- counting

    def count(self, job_id: str, results: Sequence[TaskResult]) -> ExportJob:
        """Count results, finish the job if they were the last, and return the job.

        Results of a closed job are dropped; the returned job is then terminal or decided.
        The job is checked even if no result counted, because the process that counted them
        before may have crashed before it finished the job.
        """
        try:
            self._jobs.record_results(job_id, results)
        except JobClosed:
            return require_job(self._jobs, job_id)
        for result in results:
            self._emit_result(result)
        return self.complete(job_id)

    def seal(self, job_id: str, total_tasks: int) -> ExportJob:
        """Set the number of tasks. Finishes the job if all its tasks are counted already."""
        self._jobs.set_total_tasks(job_id, total_tasks)
        self._events.emit(JobSealed(job_id, total_tasks))
        return self.complete(job_id)

    # -- the outcome

    def complete(self, job_id: str) -> ExportJob:
        """Decide the outcome if every task is counted, send it, and return the job."""
        job = require_job(self._jobs, job_id)
        if job.all_counted:
            job = self._jobs.claim_outcome(job_id) or require_job(self._jobs, job_id)
        return self._send_pending(job)

    def fail(self, job_id: str, error: JobError) -> ExportJob:
        """Fail the job unless its outcome is decided, send the outcome, and return the job."""
        job = self._jobs.give_up(job_id, error) or require_job(self._jobs, job_id)
        return self._send_pending(job)

    def abandon(self, job_id: str, token: TaskToken | None, error: JobError) -> ExportJob:
        """Fail the job if no other token than this has it, and return the job.

        If another one has it, the work may go on, and the execution of this token times out.
        """
        job = require_job(self._jobs, job_id)
        return job if job.task_token != token else self.fail(job_id, error)

    def fail_stalled(self, job: ExportJob, seconds: float) -> ExportJob:
        """Fail a job that made no progress for so long, and return it.

        `job` comes from a listing that may be old, so the row is read again first.
        """
        stored = require_job(self._jobs, job.job_id)
        if stored.last_progress_at > job.last_progress_at or stored.terminal:
            return stored
        self._events.emit(JobStalled(job.job_id, seconds))
        message = f"no task was finished and no byte arrived for {seconds:.0f} s"
        return self.fail(job.job_id, JobError("JobStalled", message))

    def token_closed(self, job: ExportJob, code: str) -> ExportJob:
        """Note in the stored job that heartbeats found its token closed, and return the job.

        Nothing is noted for a job that is finished or about to be, because it closed the
        token itself, nor for a job that has another token by now. Step Functions gave up on
        any other job. Its work goes on until the state's Retry had its chance.
        """
        assert job.task_token is not None
        error = _make_token_error(code)
        noted = self._jobs.note_token_closed(job.job_id, job.task_token, error)
        if noted is None:
            return require_job(self._jobs, job.job_id)
        self._events.emit(StepFunctionsTimedOut(job.job_id, code))
        return noted

    def fail_closed(self, job: ExportJob, grace_seconds: float) -> ExportJob:
        """Fail a job whose token was closed so long ago if it has no other; return the job."""
        decided = self._jobs.give_up_closed(job.job_id, grace_seconds=grace_seconds)
        return self._send_pending(decided or require_job(self._jobs, job.job_id))

    # -- the callback

    def _send_pending(self, job: ExportJob) -> ExportJob:
        if job.callback.state is not CallbackState.PENDING:
            return job
        if job.task_token is not None and self._step_functions is None:
            return job  # a host with Step Functions has to send it
        before = self._jobs.begin_callback(
            job.job_id, again_after_seconds=self._again_after_seconds
        )
        if before is not None:
            self._deliver(before)
        return require_job(self._jobs, job.job_id)

    def _deliver(self, job: ExportJob) -> None:
        callback = job.callback
        status, error = callback.status, callback.error
        try:
            self._send_callback(job)
        except TokenClosed as closed:
            is_noted = job.token_closed_at is not None
            if not (callback.in_doubt or is_noted or callback.attempts):
                # A single refusal may be a mistake of the service, so a second one decides.
                self._end_attempt(job, closed, in_doubt=False)
                return
            if not callback.in_doubt:
                # No earlier attempt can have closed the token, so Step Functions gave up.
                if not is_noted:
                    self._events.emit(StepFunctionsTimedOut(job.job_id, closed.code))
                if status is JobStatus.COMPLETED:
                    status, error = JobStatus.FAILED, _make_token_error(closed.code)
        except (CallbackRefused, CallbackUnclear) as failure:
            in_doubt = callback.in_doubt or isinstance(failure, CallbackUnclear)
            self._end_attempt(job, failure, in_doubt=in_doubt)
            return
        self._settle(job, status, error)

    def _end_attempt(self, job: ExportJob, failure: Exception, *, in_doubt: bool) -> None:
        self._events.emit(CallbackFailed(job.job_id, type(failure).__name__))
        self._jobs.end_callback(job.job_id, in_doubt=in_doubt, generation=job.token_generation)

    def _send_callback(self, job: ExportJob) -> None:
        if job.task_token is None:
            return
        assert self._step_functions is not None
        send_outcome(self._step_functions, job.task_token, job)
        self._events.emit(CallbackSent(job.job_id, job.callback.status))

    def _settle(self, job: ExportJob, status: JobStatus, error: JobError | None) -> None:
        job_id, generation = job.job_id, job.token_generation
        if not self._jobs.settle(job_id, status, error, generation=generation):
            return
        state = require_job(self._jobs, job_id).state
        code = None if error is None else error.code
        self._events.emit(
            JobFinished(job_id, status, state.completed_tasks, state.failed_tasks, code)
        )

    def _emit_result(self, result: TaskResult) -> None:
        if not self._events.has_subscribers:
            return
        if result.success:
            done = TaskCompleted(result.job_id, result.task_id, result.bytes_processed)
            self._events.emit(done)
        else:
            code = result.error.code if result.error else "Failed"
            self._events.emit(TaskFailed(result.job_id, result.task_id, code))


def require_job(jobs: JobStateRepository, job_id: str) -> ExportJob:
    """Return the current job. Raises JobNotFound."""
    job = jobs.find_by_id(job_id)
    if job is None:
        raise build_not_found_error(job_id)
    return job


def send_outcome(step_functions: StepFunctions, token: TaskToken, job: ExportJob) -> None:
    """Send the job's outcome to a token, as its pending callback or its status says."""
    pending = job.callback.state is CallbackState.PENDING
    status = job.callback.status if pending else job.status
    error = job.callback.error if pending else job.error
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


def _make_token_error(code: str) -> JobError:
    """Return the error for a closed token.

    The service's code does not tell a timeout from a foreign token.
    """
    timed_out, invalid = TOKEN_ERRORS
    name = timed_out if code == timed_out else invalid
    return JobError(name, f"Step Functions does not wait for this job any more ({code})")
