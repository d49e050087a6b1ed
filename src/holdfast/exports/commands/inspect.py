"""`holdfast export list`, `show`, `tables` and `doctor`, and the options that commands share.

Task tokens are masked.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.arguments import AsJson, parse_choice, parse_size
from holdfast.cli.console import (
    NotFound,
    UsageError,
    print_facts,
    print_json,
    print_list,
    print_result,
    silence_log,
)
from holdfast.cli.doctor import CreateTables, print_check_results, show_tables
from holdfast.doctor.checks import CheckFailed
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.exports.building import open_jobs
from holdfast.exports.checks import JOB_STORE, examine_exports, examine_machine
from holdfast.exports.columns import select_job_fields, show_progress
from holdfast.exports.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskStatus,
)
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.settings import ExportSettings, find_job_store
from holdfast.exports.target_check import check_target as write_to_target
from holdfast.exports.target_check import examine_target
from holdfast.lease.clock import SYSTEM_CLOCK, to_utc
from holdfast.listing import format_cell
from holdfast.settings import read_settings
from holdfast.text import format_age, format_count
from holdfast.urls import TARGETS, parse_url, require_store

STORE_VARIABLE = ExportSettings.to_variable("jobs")

To = Annotated[str, "TARGET", "Where files are stored: a folder, or s3://BUCKET/PREFIX."]
Store = Annotated[
    str | None,
    "STORE",
    "Where jobs are stored: a file (jobs.db), or dynamodb:PREFIX for the tables "
    f"PREFIXExportJobs and PREFIXExportTasks. Also {STORE_VARIABLE}.",
]


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """The options of commands that download, by the names of the settings.

    Each may also come from the environment.
    """

    worker_pool_size: Annotated[
        int | None, "--workers", "Worker processes (4, or WORKER_POOL_SIZE)."
    ] = None
    downloads: Annotated[int | None, "Simultaneous downloads in each worker (4)."] = None
    allow_private: Annotated[bool, "Allow downloads from private and loopback addresses."] = (
        False
    )
    allow_hosts: Annotated[
        list[str] | None,
        "--allow-host",
        "HOST[:PORT]",
        "Allow downloads from this host even if private.",
    ] = None
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-size", parser=parse_size, metavar="SIZE", help="Maximum size of a file."
        ),
    ] = None
    download_attempts: Annotated[
        int | None, "--attempts", "Attempts of one download before it fails (5)."
    ] = None
    durable: Annotated[bool, "Sync each file, so that it survives a power cut."] = False

    def resolve_settings(self) -> ExportSettings:
        """Return the settings: options win over the environment. Raises ConfigError."""
        # A flag that is not given does not mean "no", because the environment may turn it on.
        given = {name: value for name, value in asdict(self).items() if value}
        return read_settings(ExportSettings, os.environ, given=given)


def check_target(to: str) -> Path | None:
    """Return the target's folder, or None for S3. Raises UsageError if it can never be one.

    `require_usable_target` finds out whether it can be written to.
    """
    try:
        target = parse_url(to, TARGETS)
    except ConfigError as error:
        raise UsageError(f"--to {to}: {error}") from None
    if target.scheme == "s3":
        if not target.path.partition("/")[0]:
            raise UsageError(f"--to {to}: the bucket is missing; write s3://BUCKET/PREFIX")
        return None
    if not to:
        raise UsageError("--to is empty; name a folder, or s3://BUCKET/PREFIX")
    if os.path.lexists(to) and not os.path.isdir(to):
        raise UsageError(f"--to {to}: this is a file; a folder is needed")
    return Path(to)


def require_usable_target(to: str) -> None:
    """Try to write to the target, because each file would fail by itself after it was fetched.

    Raises StoreUnavailable with the reason, and ConfigError for a missing package or setting.
    """
    try:
        for _ in write_to_target(to):
            pass
    except CheckFailed as error:
        raise StoreUnavailable(f"--to {error.result.found}: {error.result.remedy}") from error


# -- commands

_STATUSES = "PROCESSING|DOWNLOADING|COMPLETED|FAILED"


def list_(
    jobs: Store = None,
    status: Annotated[str | None, _STATUSES, "Show only jobs with this status."] = None,
    with_token: Annotated[bool, "Show only jobs that Step Functions waits for."] = False,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a store, oldest first."""
    statuses = list(JobStatus)
    if status is not None:
        statuses = [parse_choice("--status", status, JobStatus, str.upper)]
    with _open_repository(jobs) as repository:
        selected = [job for each in statuses for job in repository.find_by_status(each)]
    selected = [job for job in selected if job.has_task_token() or not with_token]
    selected.sort(key=lambda job: job.created_at)
    print_list(as_json, selected, _job_to_json, select_job_fields(*_LISTED))


def show(
    job_id: Annotated[str, "<JOB>", "The id of the job."],
    jobs: Store = None,
    failed: Annotated[bool, "List the failed tasks."] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: its progress, its callback to Step Functions, and its error."""
    with _open_repository(jobs) as repository:
        job = repository.find_by_id(job_id)
        if job is None:
            raise NotFound(
                f"there is no job {job_id!r} in this store: see `holdfast export list`"
            )
        tasks = list(read_tasks(repository, job_id, TaskStatus.FAILED)) if failed else []
    tasks.sort(key=lambda task: task.key)
    if as_json:
        failures = [{"name": task.key, "error": task.error} for task in tasks]
        print_json({**_job_to_json(job), **({"failed_tasks": failures} if failed else {})})
        return
    print_facts(_describe_job(job, SYSTEM_CLOCK.time()))
    print_result(*(f"  {task.key}  {format_job_error(task.error)}" for task in tasks))


@contextmanager
def _open_repository(store: str | None) -> Iterator[JobStateRepository]:
    remedy = (
        "name it with --jobs; for `holdfast export run --to FOLDER` that is `--jobs FOLDER`"
    )
    url = require_store(find_job_store(os.environ, store), "there is no job store", remedy)
    with silence_log(), open_jobs(url) as repository:
        yield repository


def read_tasks(
    repository: JobStateRepository, job_id: str, status: TaskStatus | None = None
) -> Iterator[ExportTask]:
    """Yield the tasks of a job, or those with a status, in the order of their ids."""
    after = None
    while page := repository.tasks(job_id, status=status, after=after):
        yield from page
        after = page[-1].task_id


def tables(
    jobs: Store = None,
    create: CreateTables = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of a job store."""
    show_tables(JOB_STORE, jobs or os.environ.get(STORE_VARIABLE, ""), create, as_json)


def doctor(
    jobs: Store = None,
    to: Annotated[str | None, "TARGET", "Check this target too."] = None,
    state_machine: Annotated[
        str | None, "ARN|FILE.json", "Check the timeouts of this state machine too."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, job store, target and state machine for problems."""
    env = {**os.environ, **({STORE_VARIABLE: jobs} if jobs else {})}
    checks = [
        (examine_exports, "exports"),
        (examine_target, to),
        (examine_machine, state_machine),
    ]
    with silence_log():
        results = (check(target, env) for check, target in checks if target is not None)
        print_check_results(chain.from_iterable(results), as_json)


# -- for a terminal


_LISTED = ("job", "status", "progress", "age", "last progress", "token", "error")


def _describe_job(job: ExportJob, now: float) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for each fact of the job."""
    yield "job", job.job_id
    yield "status", job.status.value
    at = to_utc(now)
    yield "progress", format_cell(show_progress(job, at), at)
    yield "export", job.export_id
    yield "user", job.user_id
    yield "started", _format_time(job.created_at, now)
    yield "last progress", _format_time(job.last_progress_at, now)
    if job.completed_at is not None:
        yield "ended", _format_time(job.completed_at, now)
    yield "token", _format_token(job)
    yield "callback", _format_callback(job)
    if job.error is not None:
        yield "error", format_job_error(job.error)


def _format_time(at: float, now: float) -> str:
    return f"{to_utc(at):%Y-%m-%d %H:%M:%S} UTC, {format_age(at, now)} ago"


def _format_token(job: ExportJob) -> str:
    if job.task_token is None:
        return "none"
    again = f", number {job.token_generation + 1} of this job" if job.token_generation else ""
    return f"{job.task_token}{again}"


def _format_callback(job: ExportJob) -> str:
    callback = job.callback
    if not job.seen_tokens and callback.state is not CallbackState.PENDING:
        return "none, because no execution waits"
    if callback.state is not CallbackState.PENDING:
        return callback.state.value
    uncertain = ", may have arrived" if callback.in_doubt else ""
    tried = format_count(callback.attempts, "time")
    return f"pending: {callback.status}, tried {tried}{uncertain}"


def format_job_error(error: JobError | None) -> str:
    """Return the code and the message of an error."""
    return f"{error.code}: {error.message}" if error else "failed"


# -- for scripts


def _job_to_json(job: ExportJob) -> dict[str, Any]:
    """Return the job as JSON."""
    state, callback = job.state, job.callback
    return {
        "job": job.job_id,
        "export": job.export_id,
        "user": job.user_id,
        "status": job.status.value,
        "sealed": job.sealed,
        "total": state.total_tasks,
        "completed": state.completed_tasks,
        "failed": state.failed_tasks,
        "percent": state.percent,
        "percent_processed": state.percent_processed,
        "token": str(job.task_token) if job.task_token else None,
        "callback": {
            "state": callback.state.value,
            "attempts": callback.attempts,
            "in_doubt": callback.in_doubt,
        },
        "error": job.error,
        "created_at": to_utc(job.created_at),
        "last_progress_at": to_utc(job.last_progress_at),
        "completed_at": None if job.completed_at is None else to_utc(job.completed_at),
    }
