"""The columns of jobs, in the lists of the command line and the console."""

from datetime import datetime

from holdfast.exports.model import CallbackState, ExportJob, JobStatus
from holdfast.lease.clock import to_utc
from holdfast.listing import Cell, Field, Mark, Meter, Moment, Tone
from holdfast.text import format_duration

_TONES: dict[JobStatus, Tone] = {JobStatus.COMPLETED: "done", JobStatus.FAILED: "bad"}


def show_status(job: ExportJob, now: datetime) -> Cell:
    """Return the cell of a job's status."""
    return Mark(job.status.value, _TONES.get(job.status, "good"))


def show_progress(job: ExportJob, now: datetime) -> Cell:
    """Return the cell of a job's progress."""
    state = job.state
    if not job.sealed:
        return None if job.terminal else "listing files"
    failed = f", {state.failed_tasks:,} failed" if state.failed_tasks else ""
    done = f"{state.completed_tasks:,} of {state.total_tasks:,} done ({state.percent} %)"
    tone: Tone = "bad" if job.status is JobStatus.FAILED else "good"
    meter = Meter(state.processed_tasks, max(1, state.total_tasks), "Finished tasks", tone)
    return f"{done}{failed}", meter


def compute_pace(job: ExportJob) -> float | None:
    """Return the average of finished tasks per second, or None if it is not known."""
    took = (job.completed_at or job.last_progress_at) - job.created_at
    return job.state.processed_tasks / took if job.state.processed_tasks and took > 0 else None


def compute_left_seconds(job: ExportJob) -> float | None:
    """Return how long a job will take, or None if that is not known."""
    pace = compute_pace(job)
    return job.remaining_tasks / pace if pace and job.sealed and not job.terminal else None


def show_per_minute(job: ExportJob, now: datetime) -> Cell:
    """Return the cell of a job's pace."""
    pace = compute_pace(job)
    return None if pace is None else pace * 60


def _show_left(job: ExportJob, now: datetime) -> Cell:
    left = compute_left_seconds(job)
    return None if left is None else format_duration(left)


def _show_callback(job: ExportJob, now: datetime) -> Cell:
    return "pending" if job.callback.state is CallbackState.PENDING else None


_FIELDS: tuple[Field[ExportJob], ...] = (
    Field("job", lambda job, now: job.job_id),
    Field("status", show_status),
    Field("progress", show_progress, "wide"),
    Field("per minute", show_per_minute, "num"),
    Field("time left", _show_left, "num"),
    Field("age", lambda job, now: Moment(to_utc(job.created_at), "since"), "num"),
    Field("last progress", lambda job, now: Moment(to_utc(job.last_progress_at)), "num"),
    Field("callback", _show_callback),
    Field("token", lambda job, now: job.task_token),
    Field("error", lambda job, now: job.error.code if job.error else None),
)


def select_job_fields(*names: str) -> list[Field[ExportJob]]:
    """Return the columns with these names."""
    fields = {field.name: field for field in _FIELDS}
    return [fields[name] for name in names]
