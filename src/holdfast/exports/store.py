"""A job store whose every change is one rule of `transitions`, applied in one atomic step."""

from abc import abstractmethod
from typing import Any, NamedTuple
from uuid import uuid4

from holdfast.exports import transitions
from holdfast.exports.errors import IllegalTransition
from holdfast.exports.model import (
    ExportJob,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.exports.ports import JobStateRepository
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


class RuleJobStore(JobStateRepository):
    """A store that only has to apply a rule. `keep_seconds` is how long finished jobs stay."""

    def __init__(self, clock: Clock, keep_seconds: float | None) -> None:
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

    def update_job_status(
        self, job_id: str, status: JobStatus, error: JobError | None = None
    ) -> None:
        """Move the job to this status. Raises IllegalTransition."""
        self._change(job_id, transitions.move_job, status, error, None)

    def update_job_state(self, job_id: str, state: JobState) -> None:
        """Move the job if its counters are those of `state`. Raises IllegalTransition."""
        self._change(job_id, transitions.move_job, state.status, None, state)

    def increment_completed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count a task as completed."""
        self._increment(job_id, task_id, success=True)

    def increment_failed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count a task as failed."""
        self._increment(job_id, task_id, success=False)

    def _increment(self, job_id: str, task_id: str | None, *, success: bool) -> None:
        if task_id is None:
            self._count_unlisted(TaskResult(job_id, f"unnamed-{uuid4().hex}", success))
        else:
            self.record_results(job_id, [TaskResult(job_id, task_id, success)])

    def set_total_tasks(self, job_id: str, total_tasks: int) -> None:
        """Seal the job with this number of tasks."""
        if total_tasks < 0:
            raise ValueError(f"total_tasks must be 0 or more; got {total_tasks}")
        self._change(job_id, transitions.seal_job, total_tasks)

    def note_progress(self, job_id: str) -> None:
        """Record that the job made progress."""
        self._change(job_id, transitions.record_progress)

    # -- the outcome and its callback

    def claim_outcome(self, job_id: str) -> ExportJob | None:
        """Decide the outcome once all results are in. Return the job, or None."""
        return self._change(job_id, transitions.claim_outcome).job_if_made

    def give_up(self, job_id: str, error: JobError) -> ExportJob | None:
        """Decide the job as failed. Return the job, or None if its outcome is decided."""
        return self._change(job_id, transitions.give_up_job, error).job_if_made

    def begin_callback(self, job_id: str, *, again_after_seconds: float) -> ExportJob | None:
        """Begin a callback attempt. Return the job before it, or None if none may begin."""
        change = self._change(
            job_id, transitions.begin_attempt, again_after_seconds, return_before=True
        )
        return change.job_if_made

    def end_callback(
        self, job_id: str, *, in_doubt: bool, generation: int | None = None
    ) -> None:
        """End an unsuccessful callback attempt."""
        self._change(job_id, transitions.end_attempt, in_doubt, generation)

    def settle(
        self,
        job_id: str,
        status: JobStatus,
        error: JobError | None,
        *,
        generation: int | None = None,
    ) -> bool:
        """Settle the job. Return False if no callback is pending."""
        if not status.terminal:
            raise IllegalTransition(f"a job cannot be settled as {status}")
        change = self._change(job_id, transitions.settle_job, status, error, generation)
        return change.is_made

    # -- the token

    def note_token_closed(
        self, job_id: str, token: TaskToken, error: JobError
    ) -> ExportJob | None:
        """Note that the token was found closed. Return the job, or None."""
        return self._change(job_id, transitions.note_token_closed, token, error).job_if_made

    def give_up_closed(self, job_id: str, *, grace_seconds: float) -> ExportJob | None:
        """Decide the job as failed if its token was closed so long ago. Return it, or None."""
        return self._change(job_id, transitions.give_up_closed, grace_seconds).job_if_made

    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        """Attach the token of a new execution and return the job. Raises JobClosed."""
        return self._change(job_id, transitions.attach_token, token).job
