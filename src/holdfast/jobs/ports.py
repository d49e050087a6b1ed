"""What jobs need from the world: a store that counts exactly, and Step Functions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.jobs.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)


class JobStateRepository(ABC):
    """Jobs and their tasks. Safe for threads, processes and hosts.

    Promises of every method:
    - it is one transaction, or a row of them of which each leaves the job consistent:
      `completed_tasks + failed_tasks` is the number of finished task rows, always;
    - it is safe to call again after StoreUnavailable;
    - JobNotFound when there is no such job, but for `find_by_id`; never a job made up on
      the way;
    - every write moves `updated_at`.
    """

    # -- the seed's operations

    @abstractmethod
    def save(self, job: ExportJob) -> None:
        """Create the job. JobExists, and nothing changed, when its id is there already."""

    @abstractmethod
    def find_by_id(self, job_id: str) -> ExportJob | None:
        """The job as the last write left it, never older; None when there is none."""

    @abstractmethod
    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """All jobs of that status, with and without token, however many pages that takes.

        May be a moment behind: read by id before you act on what it says.
        """

    @abstractmethod
    def update_job_status(
        self, job_id: str, status: JobStatus, error: JobError | None = None
    ) -> None:
        """Move the job on. Nothing happens when it is there already.

        Raises IllegalTransition for a step the model does not know; for a terminal status
        while a token waits for its answer or an outcome is pending; and for COMPLETED
        unless the job is sealed, every task is counted and none failed. A job that is
        terminal then has `completed_at` and nobody left to tell.
        """

    @abstractmethod
    def update_job_state(self, job_id: str, state: JobState) -> None:
        """Move the job to `state.status`, if its counters are still those of `state`.

        Counters follow from results alone, so other ones are refused: IllegalTransition,
        as for what `update_job_status` refuses.
        """

    @abstractmethod
    def increment_completed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count one task as done: `record_results` with a single success.

        Without an id a task row of its own is written for it, so that counters and rows
        agree; calling twice counts twice then.
        """

    @abstractmethod
    def increment_failed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """The same for a task that failed."""

    @abstractmethod
    def set_total_tasks(self, job_id: str, total_tasks: int) -> None:
        """Seal the job: these are all its tasks. Again with the same number: nothing.

        Raises AlreadySealed for another number, JobClosed for a job whose outcome is
        decided.
        """

    # -- tasks

    @abstractmethod
    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        """Store the tasks that are not there yet, as PENDING; those that are stay as they are.

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
        """Up to `limit` tasks of that status in order of their ids, beginning behind `after`.

        Fewer than `limit`: there are no more. Reads what was written last.
        """

    @abstractmethod
    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        """Finish task rows and count them, together; how many were counted now.

        A task that is finished already, or unknown, or named twice, is not counted (again);
        the first result of a task stays. Raises JobClosed when the job is not DOWNLOADING
        or its outcome is decided: then nothing of that batch is counted.
        """

    @abstractmethod
    def note_progress(self, job_id: str) -> None:
        """The job moves although no task of it was finished: bytes arrive, it was resumed.

        Moves `last_progress_at`. Nothing happens to a job that is terminal.
        """

    # -- the outcome and its callback

    @abstractmethod
    def claim_outcome(self, job_id: str) -> ExportJob | None:
        """Decide the outcome of a job whose tasks are all counted: COMPLETED, or FAILED
        with `JobCompletedWithFailures` when any failed. Its callback is pending then.

        One caller wins and gets the job; the others, and whoever comes too early, get None.
        """

    @abstractmethod
    def give_up(self, job_id: str, error: JobError) -> ExportJob | None:
        """Decide that an active job failed, whatever its tasks do. As `claim_outcome`."""

    @abstractmethod
    def begin_callback(self, job_id: str, *, again_after_seconds: float) -> ExportJob | None:
        """Note that an answer is about to be sent, before it is.

        The job as it was before, with `callback.in_doubt` of earlier attempts; from now on
        the callback counts one more attempt and is in doubt. None when nothing is pending,
        or another attempt began less than `again_after_seconds` ago and did not end.
        """

    @abstractmethod
    def end_callback(self, job_id: str, *, in_doubt: bool) -> None:
        """The attempt failed; whether it, or one before, may have been acted on after all.

        Anybody may try again at once. Nothing happens when the callback is not pending.
        """

    @abstractmethod
    def settle(self, job_id: str, status: JobStatus, error: JobError | None) -> bool:
        """The answer is out: the job is terminal, its token forgotten. One caller gets True.

        The callback is SENT and not in doubt any more; its attempts stay counted.

        Raises ValueError or IllegalTransition for a status that is not terminal.
        """

    @abstractmethod
    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        """Have the job answer to another token from now on; `token_generation` rises.

        A token that has or had the job: nothing, the job as it is. An execution that was
        superseded does not get it back. Raises JobClosed once the outcome is decided.
        """

    # -- the store itself

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. Jobs stay."""

    def __enter__(self) -> "JobStateRepository":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StepFunctions(Protocol):
    """The three callbacks. Each returns when Step Functions took it.

    Raises TokenClosed, CallbackRefused or CallbackUnclear, and nothing else. No text of
    theirs holds the token.
    """

    def send_task_success(self, token: TaskToken, output: Mapping[str, Any]) -> None: ...

    def send_task_failure(self, token: TaskToken, error: str, cause: str) -> None:
        """Texts longer than the service takes are cut, with a mark."""

    def send_task_heartbeat(self, token: TaskToken) -> None: ...
