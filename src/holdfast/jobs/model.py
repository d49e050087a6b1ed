"""A job, its tasks and its token, as values.

    PROCESSING ──▶ DOWNLOADING ──▶ COMPLETED   every task succeeded
        │              └─────────▶ FAILED      some task failed, or the job was given up
        └────────────────────────▶ FAILED

A job that has a task token is not finished before the token was answered:

    active, no callback ── outcome decided ─▶ callback pending ── answered ─▶ terminal
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from holdfast.jobs.errors import IllegalTransition


class JobStatus(StrEnum):
    PROCESSING = "PROCESSING"  # its tasks are being listed
    DOWNLOADING = "DOWNLOADING"  # its tasks are being worked on
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        return self in (JobStatus.COMPLETED, JobStatus.FAILED)

    def may_become(self, other: "JobStatus") -> bool:
        return other in _NEXT[self]


_NEXT = {
    JobStatus.PROCESSING: {JobStatus.DOWNLOADING, JobStatus.FAILED},
    JobStatus.DOWNLOADING: {JobStatus.COMPLETED, JobStatus.FAILED},
    JobStatus.COMPLETED: set[JobStatus](),
    JobStatus.FAILED: set[JobStatus](),
}
ACTIVE = (JobStatus.PROCESSING, JobStatus.DOWNLOADING)


class TaskStatus(StrEnum):
    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class TaskToken:
    """A Step Functions task token: a secret. Whoever has it can answer for the job.

    Nothing that prints it shows it; `reveal()` is for the call to Step Functions and for
    the store alone.
    """

    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        self._token = token

    def reveal(self) -> str:
        return self._token

    @property
    def mark(self) -> str:
        """Tells this token from any other, and cannot be answered with."""
        return hashlib.sha256(self._token.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return mask_task_token(self._token)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskToken) and other._token == self._token

    def __hash__(self) -> int:
        return hash(self._token)


def mask_task_token(token: str) -> str:
    """Enough to tell two tokens apart in a log, nothing to answer with."""
    return f"token#{hashlib.sha256(token.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job or a task failed. Shown to people: no token, no body, no credentials."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job stands. `total_tasks` is 0 until the job is sealed."""

    status: JobStatus = JobStatus.PROCESSING
    total_tasks: int = 0
    completed_tasks: int = 0
    failed_tasks: int = 0

    def __post_init__(self) -> None:
        for name in ("total_tasks", "completed_tasks", "failed_tasks"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} cannot be below 0")

    @classmethod
    def create(
        cls,
        status: JobStatus | str = JobStatus.PROCESSING,
        total_tasks: int = 0,
        completed_tasks: int = 0,
        failed_tasks: int = 0,
    ) -> Self:
        return cls(JobStatus(status), total_tasks, completed_tasks, failed_tasks)

    @property
    def processed_tasks(self) -> int:
        return self.completed_tasks + self.failed_tasks

    @property
    def percent(self) -> int:
        """Completed tasks of all, rounded; 0 while nothing is known."""
        return _percent(self.completed_tasks, self.total_tasks)

    @property
    def percent_processed(self) -> int:
        """The same with failed tasks counted too: it reaches 100 whatever happens."""
        return _percent(self.processed_tasks, self.total_tasks)

    def moved_to(self, status: JobStatus) -> Self:
        """Raises IllegalTransition."""
        if not self.status.may_become(status):
            raise IllegalTransition(f"a job that is {self.status} cannot become {status}")
        return replace(self, status=status)


def _percent(part: int, whole: int) -> int:
    return round(100 * part / whole) if whole else 0


class CallbackState(StrEnum):
    NONE = "none"  # the outcome is open
    PENDING = "pending"  # decided; Step Functions is to be told
    SENT = "sent"  # told, or there was nobody to tell


@dataclass(frozen=True, slots=True)
class Callback:
    """The answer the job owes to Step Functions: its outbox.

    `in_doubt`: some attempt to send may have been acted on, its answer never came.
    `attempted_at`: an attempt is under way since then; None: anybody may try.
    """

    state: CallbackState = CallbackState.NONE
    status: JobStatus = JobStatus.FAILED  # what the answer will say, once decided
    error: JobError | None = None
    attempts: int = 0
    in_doubt: bool = False
    attempted_at: float | None = None


NO_CALLBACK = Callback()


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One job as it is stored. Times are seconds since the epoch.

    `remaining_tasks` is the tasks not counted yet. Before the seal it is below 0 when
    results came early; the seal adds the total.
    `last_progress_at` moves with results and with `note_progress`; never with heartbeats.
    """

    job_id: str
    export_id: str
    user_id: str
    state: JobState = JobState()
    task_token: TaskToken | None = None
    token_generation: int = 0
    seen_tokens: frozenset[str] = frozenset()  # marks of all it ever answered to
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
        return self.task_token is not None

    def has_seen(self, token: TaskToken) -> bool:
        """Does it answer to that token, or did it once?"""
        return token == self.task_token or token.mark in self.seen_tokens

    def awaits_answer_to(self, token: TaskToken | None) -> bool:
        """Whether its outcome is open, and that token is the one to be answered.

        If not, a refusal of that token is to be expected, and says nothing about the job.
        """
        undecided = not self.terminal and self.callback.state is CallbackState.NONE
        return undecided and self.task_token == token

    @property
    def status(self) -> JobStatus:
        return self.state.status

    @property
    def terminal(self) -> bool:
        return self.state.status.terminal

    @property
    def all_counted(self) -> bool:
        """Every task is accounted for and the outcome is not decided yet."""
        return (
            self.status is JobStatus.DOWNLOADING
            and self.sealed
            and self.remaining_tasks == 0
            and self.callback.state is CallbackState.NONE
        )


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One file to fetch. `key` is its name below the target; `checksum` is what the file
    must have, as `sha256:<hex>` or `md5:<hex>`."""

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
    def of(
        cls,
        job_id: str,
        url: str,
        key: str,
        checksum: str | None = None,
        size: int | None = None,
    ) -> Self:
        """A new task. Its id follows from what it is: listing a job twice finds the same
        tasks again."""
        return cls(job_id, task_id_of(job_id, url, key), url, key, checksum, size)


def task_id_of(job_id: str, url: str, key: str) -> str:
    return hashlib.sha256("\0".join((job_id, url, key)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What became of a task, for good: it was done, or it will not be."""

    job_id: str
    task_id: str
    success: bool
    bytes_processed: int = 0
    error: JobError | None = None
