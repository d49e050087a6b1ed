"""The ports of jobs: a store that counts exactly, and Step Functions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from holdfast.exports import transitions
from holdfast.exports.errors import IllegalTransition
from holdfast.exports.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.exports.transitions import Rule
from holdfast.lease.clock import Clock


class JobChange(NamedTuple):
    """What a rule did: the job after it, or before it if requested, and whether it changed."""

    job: ExportJob
    is_made: bool

    @property
    def job_if_made(self) -> ExportJob | None:
        """The job, or None if the rule changed nothing."""
        return self.job if self.is_made else None


class JobStateRepository(ABC):
    """The store of jobs and their tasks. Safe for threads, processes and hosts.

    Promises of every method:
    - It is one transaction, or several of which each leaves the job consistent:
      `completed_tasks + failed_tasks` is always the number of finished task rows.
    - It is safe to call again after StoreUnavailable.
    - It raises JobNotFound if there is no such job, and never creates one. Only `save`
      creates jobs, and `find_by_id` returns None instead.
    - Every write moves `updated_at`.

    Every change of a job is one rule of `transitions`, which a store only has to apply.
    """

    def __init__(self, clock: Clock, keep_seconds: float | None) -> None:
        """Create a store that keeps finished jobs for `keep_seconds`; None is forever."""
        self._clock = clock
        self._keep_seconds = keep_seconds

    @abstractmethod
    def _change(
        self, job_id: str, rule: Rule, *arguments: Any, return_before: bool = False
    ) -> JobChange:
        """Apply the rule to the current job, and store the result, in one atomic step.

        Raises JobNotFound, and the refusal that the rule returns.
        """

    @abstractmethod
    def _count_unlisted(self, result: TaskResult) -> None:
        """Write the row of a task that was never listed, and count its result."""

    # -- the seed's operations

    @abstractmethod
    def save(self, job: ExportJob) -> None:
        """Create the job. Raises JobExists, and changes nothing, if its id is in use."""

    @abstractmethod
    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the job as the last write left it, never an older one, or None."""

    @abstractmethod
    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs of that status, with and without a token, from all pages.

        The list may be a moment behind, so read a job by its id before acting on it.
        """

    def update_job_status(
        self, job_id: str, status: JobStatus, error: JobError | None = None
    ) -> None:
        """Move the job to that status. Nothing happens if it has that status already.

        Raises IllegalTransition in three cases: if the model does not allow the step; for a
        terminal status while a token waits for the outcome or a callback is pending; and
        for COMPLETED unless the job is sealed, every task is counted and none failed.
        A job that becomes terminal gets `completed_at` and owes no callback.
        """
        self._change(job_id, transitions.move_job, status, error, None)

    def update_job_state(self, job_id: str, state: JobState) -> None:
        """Move the job to `state.status` if its counters are still those of `state`.

        Only results change counters, so other counters raise IllegalTransition, as does
        everything that `update_job_status` refuses.
        """
        self._change(job_id, transitions.move_job, state.status, None, state)

    def increment_completed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count one task as completed, as `record_results` does with a single success.

        Without an id, a new task row is written for it, so that counters and rows agree.
        Calling this twice then counts two tasks.
        """
        self._increment(job_id, task_id, success=True)

    def increment_failed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count one task as failed, in the same way."""
        self._increment(job_id, task_id, success=False)

    def _increment(self, job_id: str, task_id: str | None, *, success: bool) -> None:
        if task_id is None:
            self._count_unlisted(TaskResult(job_id, f"unnamed-{uuid4().hex}", success))
        else:
            self.record_results(job_id, [TaskResult(job_id, task_id, success)])

    def set_total_tasks(self, job_id: str, total_tasks: int) -> None:
        """Seal the job with the number of its tasks. Repeating the same number is safe.

        Raises AlreadySealed for another number, and JobClosed if the outcome is decided.
        """
        if total_tasks < 0:
            raise ValueError(f"total_tasks must be 0 or more; got {total_tasks}")
        self._change(job_id, transitions.seal_job, total_tasks)

    # -- tasks

    @abstractmethod
    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        """Store the tasks that are not stored yet, as PENDING; leave the others as they are.

        Raises AlreadySealed or JobClosed.
        """

    @abstractmethod
    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        """Return up to `limit` tasks of that status, ordered by id, that follow `after`.

        Fewer than `limit` means that there are no more. Reads the latest writes.
        """

    @abstractmethod
    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        """Finish task rows and count them in one step; return how many were counted.

        A task that is already finished, or unknown, or named twice is not counted (again),
        and the first result of a task stays. Raises JobClosed if the job is not
        DOWNLOADING or its outcome is decided; then nothing of that batch is counted.
        """

    def note_progress(self, job_id: str) -> ExportJob:
        """Move `last_progress_at` although no task finished: bytes came, or it was resumed.

        Nothing happens to a job that is terminal. Returns the job.
        """
        return self._change(job_id, transitions.record_progress).job

    # -- the outcome and its callback

    def claim_outcome(self, job_id: str) -> ExportJob | None:
        """Decide the outcome of a job whose tasks are all counted, and return the job.

        It is COMPLETED, or FAILED with `JobCompletedWithFailures` if any task failed. Its
        callback is pending then. Only one caller gets the job. All other callers, and those
        that call before all tasks are counted, get None.
        """
        return self._change(job_id, transitions.claim_outcome).job_if_made

    def give_up(self, job_id: str, error: JobError) -> ExportJob | None:
        """Decide that an active job failed, even if tasks run. Returns as `claim_outcome`."""
        return self._change(job_id, transitions.give_up_job, error).job_if_made

    def begin_callback(self, job_id: str, *, again_after_seconds: float) -> ExportJob | None:
        """Note that the outcome is about to be sent; call this before sending it.

        Returns the job as it was before, so `callback.in_doubt` is that of earlier
        attempts. From now on the callback counts one more attempt and is in doubt. Returns
        None if no callback is pending, or if another attempt began less than
        `again_after_seconds` ago and has not ended.
        """
        change = self._change(
            job_id, transitions.begin_attempt, again_after_seconds, return_before=True
        )
        return change.job_if_made

    def end_callback(
        self, job_id: str, *, in_doubt: bool, generation: int | None = None
    ) -> None:
        """Note that the attempt failed, so any process may try again at once.

        `in_doubt` says whether Step Functions may have acted on this attempt or an earlier
        one. Nothing happens if no callback is pending, or if it belongs to another
        `token_generation` than the one given.
        """
        self._change(job_id, transitions.end_attempt, in_doubt, generation)

    def settle(
        self,
        job_id: str,
        status: JobStatus,
        error: JobError | None,
        *,
        generation: int | None = None,
    ) -> bool:
        """Make the job terminal and delete its token, because its outcome was sent.

        Only one caller gets True. The callback is SENT and not in doubt any more; its
        number of attempts stays. Returns False if the pending callback belongs to another
        `token_generation` than the one given, because the job was reopened meanwhile.
        Raises IllegalTransition for a status that is not terminal.
        """
        if not status.terminal:
            raise IllegalTransition(f"a job cannot be settled as {status}")
        change = self._change(job_id, transitions.settle_job, status, error, generation)
        return change.is_made

    # -- the token

    def note_token_closed(
        self, job_id: str, token: TaskToken, error: JobError
    ) -> ExportJob | None:
        """Note that Step Functions does not wait for this token any more; return the job.

        The job then has `token_closed_at` and that error, and works on. Returns None, and
        nothing happens, if the token does not have the job, if that was noted before, or
        if the outcome is decided.
        """
        return self._change(job_id, transitions.note_token_closed, token, error).job_if_made

    def give_up_closed(self, job_id: str, *, grace_seconds: float) -> ExportJob | None:
        """Decide that a job failed whose token was found closed so long ago.

        Its error is the noted one. Returns as `claim_outcome`, so None if it has another
        token by now.
        """
        return self._change(job_id, transitions.give_up_closed, grace_seconds).job_if_made

    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        """Replace the job's token, increase `token_generation`, and return the job.

        Nothing changes if the job has or had that token, because an execution that was
        superseded does not get the job back. Raises JobClosed if the outcome is decided.

        A job that failed only because its token was closed (`can_reopen`) is reopened: it
        is DOWNLOADING without outcome, error and `ttl`, and what was counted stays counted.
        """
        return self._change(job_id, transitions.attach_token, token).job

    # -- the store itself

    @abstractmethod
    def close(self) -> None:
        """Close connections. Jobs stay."""

    def __enter__(self) -> "JobStateRepository":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StepFunctions(Protocol):
    """The three callbacks. Each returns after Step Functions accepted it.

    They raise TokenClosed, CallbackRefused or CallbackUnclear, and nothing else. The texts
    of these errors never contain the token.
    """

    def send_task_success(self, token: TaskToken, output: Mapping[str, Any]) -> None:
        """Complete the task with that output."""

    def send_task_failure(self, token: TaskToken, error: str, cause: str) -> None:
        """Fail the task. Texts longer than the service accepts are cut, with a mark."""

    def send_task_heartbeat(self, token: TaskToken) -> None:
        """Restart the task's heartbeat timeout."""
