"""A job, its tasks and its token, as values.

    PROCESSING ──▶ DOWNLOADING ──▶ COMPLETED   every task succeeded
        │              └─────────▶ FAILED      some task failed, or the job was given up
        └────────────────────────▶ FAILED

A job that has a task token becomes terminal only after its outcome was sent:

    active, no callback ── outcome decided ─▶ callback pending ── sent ─▶ terminal

A job that failed only because its token was closed has reported to no execution. The token of
another execution reopens it:

    FAILED with a token error ── a token it never had ─▶ DOWNLOADING, with its counters
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from holdfast.exports.errors import IllegalTransition


class JobStatus(StrEnum):
    """The status of a job; COMPLETED and FAILED are final."""

    PROCESSING = "PROCESSING"  # its tasks are being listed
    DOWNLOADING = "DOWNLOADING"  # its tasks are being processed
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        """Whether the status is final."""
        return self in (JobStatus.COMPLETED, JobStatus.FAILED)

    def can_become(self, other: "JobStatus") -> bool:
        """Return whether a job with this status may move to `other`."""
        return other in _NEXT[self]


_NEXT = {
    JobStatus.PROCESSING: {JobStatus.DOWNLOADING, JobStatus.FAILED},
    JobStatus.DOWNLOADING: {JobStatus.COMPLETED, JobStatus.FAILED},
    JobStatus.COMPLETED: set[JobStatus](),
    JobStatus.FAILED: set[JobStatus](),
}
ACTIVE = (JobStatus.PROCESSING, JobStatus.DOWNLOADING)

# The codes of a job that failed because Step Functions no longer waited for its token.
TOKEN_ERRORS = ("TaskTimedOut", "TaskTokenInvalid")


class TaskStatus(StrEnum):
    """The status of a task; COMPLETED and FAILED are final."""

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class TaskToken:
    """A Step Functions task token. It is a secret, because its owner can complete the job.

    Printing a token shows only a mask. Only the call to Step Functions and the store may
    call `reveal()`.
    """

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token

    def reveal(self) -> str:
        """Return the secret text of the token."""
        return self._token

    @property
    def mark(self) -> str:
        """A digest that identifies this token and cannot be used in its place."""
        return hashlib.sha256(self._token.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return mask_task_token(self._token)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskToken) and other._token == self._token

    def __hash__(self) -> int:
        return hash(self._token)


def mask_task_token(token: str) -> str:
    """Return a short digest that tells two tokens apart in a log and reveals neither."""
    return f"token#{hashlib.sha256(token.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job or a task failed.

    Operators see it, so it must not contain a token, a message body or credentials.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's status and counters. `total_tasks` is 0 until the job is sealed."""

    status: JobStatus = JobStatus.PROCESSING
    total_tasks: int = 0
    completed_tasks: int = 0
    failed_tasks: int = 0

    def __post_init__(self) -> None:
        for name in ("total_tasks", "completed_tasks", "failed_tasks"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)}")

    @classmethod
    def create(
        cls,
        status: JobStatus | str = JobStatus.PROCESSING,
        total_tasks: int = 0,
        completed_tasks: int = 0,
        failed_tasks: int = 0,
    ) -> Self:
        """Create a state; `status` may be given as text."""
        return cls(JobStatus(status), total_tasks, completed_tasks, failed_tasks)

    @property
    def processed_tasks(self) -> int:
        """The number of tasks that completed or failed."""
        return self.completed_tasks + self.failed_tasks

    @property
    def percent(self) -> int:
        """Completed tasks as a rounded percentage; 0 while the total is unknown."""
        return _compute_percent(self.completed_tasks, self.total_tasks)

    @property
    def percent_processed(self) -> int:
        """Completed and failed tasks as a percentage; it reaches 100 even if tasks fail."""
        return _compute_percent(self.processed_tasks, self.total_tasks)

    def moved_to(self, status: JobStatus) -> Self:
        """Return this state with another status; raises IllegalTransition."""
        if not self.status.can_become(status):
            raise IllegalTransition(f"a job that is {self.status} cannot become {status}")
        return replace(self, status=status)


def _compute_percent(part: int, whole: int) -> int:
    return round(100 * part / whole) if whole else 0


class CallbackState(StrEnum):
    """How far the callback to Step Functions is."""

    NONE = "none"  # the outcome is not decided
    PENDING = "pending"  # the outcome is decided and must be sent to Step Functions
    SENT = "sent"  # sent, or the job has no token


@dataclass(frozen=True, slots=True)
class Callback:
    """The callback that the job owes to Step Functions: its outbox.

    `in_doubt` means that an attempt to send got no response, so it is unknown whether Step
    Functions acted on it. `attempted_at` is the time when the current attempt began; None
    means that any process may try.
    """

    state: CallbackState = CallbackState.NONE
    status: JobStatus = JobStatus.FAILED  # the outcome to send, once it is decided
    error: JobError | None = None
    attempts: int = 0
    in_doubt: bool = False
    attempted_at: float | None = None


NO_CALLBACK = Callback()


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One job as it is stored. Times are seconds since the epoch.

    `remaining_tasks` is the number of tasks that are not counted yet. Before the seal it is
    negative if results came early, because the seal adds the total.
    Results and `note_progress` move `last_progress_at`; heartbeats never do.
    While `token_closed_at` is set, the job waits for another token, and `error` is the one
    that it fails with if none comes.
    """

    job_id: str
    export_id: str
    user_id: str
    state: JobState = JobState()
    task_token: TaskToken | None = None
    token_generation: int = 0
    seen_tokens: frozenset[str] = frozenset()  # marks of all tokens the job ever had
    sealed: bool = False
    remaining_tasks: int = 0
    callback: Callback = NO_CALLBACK
    error: JobError | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    updated_at: float = 0.0
    last_progress_at: float = 0.0
    completed_at: float | None = None
    ttl: int | None = None  # epoch seconds; only finished jobs have one
    token_closed_at: float | None = None  # when the token was found closed; only active jobs

    @classmethod
    def create(
        cls,
        job_id: str,
        export_id: str,
        user_id: str,
        job_state: JobState | None = None,
        task_token: str | TaskToken | None = None,
        *,
        now: float = 0.0,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create a new job; `now` becomes the time of its creation and last progress."""
        token = TaskToken(task_token) if isinstance(task_token, str) else task_token
        return cls(
            job_id,
            export_id,
            user_id,
            job_state or JobState(),
            token,
            seen_tokens=frozenset({token.mark} if token else ()),
            metadata=dict(metadata or {}),
            created_at=now,
            updated_at=now,
            last_progress_at=now,
        )

    def has_task_token(self) -> bool:
        """Return whether an execution of Step Functions waits for the job."""
        return self.task_token is not None

    def has_seen(self, token: TaskToken) -> bool:
        """Return whether the job has that token now or had it before."""
        return token == self.task_token or token.mark in self.seen_tokens

    def is_awaiting_outcome(self, token: TaskToken | None) -> bool:
        """Return whether the outcome is open and that token, not found closed, has the job.

        If not, Step Functions is expected to refuse that token, and the refusal says
        nothing new about the job.
        """
        is_waited_for = self.task_token == token and self.token_closed_at is None
        return is_waited_for and not self.is_decided

    @property
    def status(self) -> JobStatus:
        """The job's status."""
        return self.state.status

    @property
    def terminal(self) -> bool:
        """Whether the job's status is final."""
        return self.state.status.terminal

    @property
    def is_decided(self) -> bool:
        """Whether the outcome is decided, even if it is not sent yet."""
        return self.terminal or self.callback.state is not CallbackState.NONE

    @property
    def can_reopen(self) -> bool:
        """Whether the job failed only because its token was closed. No execution knows it."""
        error = self.error if self.terminal else self.callback.error
        return self.is_decided and error is not None and error.code in TOKEN_ERRORS

    @property
    def all_counted(self) -> bool:
        """Whether every task is counted and the outcome is not decided yet."""
        is_counting = self.status is JobStatus.DOWNLOADING and not self.is_decided
        return is_counting and self.sealed and self.remaining_tasks == 0


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One file to fetch.

    `key` is its name below the target. `checksum` is the checksum that the file must have,
    as `sha256:<hex>` or `md5:<hex>`.
    """

    job_id: str
    task_id: str
    url: str
    key: str
    checksum: str | None = None
    size: int | None = None
    status: TaskStatus = TaskStatus.PENDING
    bytes_processed: int = 0
    error: JobError | None = None

    @classmethod
    def create(
        cls,
        job_id: str,
        url: str,
        key: str,
        checksum: str | None = None,
        size: int | None = None,
    ) -> Self:
        """Create a pending task.

        Its id is derived from its arguments, so listing a job twice gives the same tasks.
        """
        return cls(job_id, derive_task_id(job_id, url, key), url, key, checksum, size)


def derive_task_id(job_id: str, url: str, key: str) -> str:
    """Return the id of the task that fetches `url` to `key` for this job."""
    return hashlib.sha256("\0".join((job_id, url, key)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The final result of a task: it completed, or it failed and is not tried again."""

    job_id: str
    task_id: str
    success: bool
    bytes_processed: int = 0
    error: JobError | None = None

    @property
    def status(self) -> TaskStatus:
        """The final status of the task."""
        return TaskStatus.COMPLETED if self.success else TaskStatus.FAILED
