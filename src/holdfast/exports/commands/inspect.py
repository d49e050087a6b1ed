"""`holdfast export list`, `show`, `tables` and `doctor`. Task tokens are masked."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import AsJson, complete_id, parse_choice
from holdfast.cli.console import print_facts, print_json, print_list, print_result
from holdfast.cli.doctor import CreateTables, print_check_results, show_tables
from holdfast.cli.errors import NotFound, silence_log
from holdfast.exports.commands.options import STORE_VARIABLE, Store, resolve_store
from holdfast.exports.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskStatus,
)
from holdfast.lease.clock import SYSTEM_CLOCK, to_utc
from holdfast.text import format_age, format_count
from holdfast.urls import require_store

if TYPE_CHECKING:
    from holdfast.exports.ports import JobStateRepository

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
        selected = list(_read_jobs(repository, statuses))
    selected = [job for job in selected if job.has_task_token() or not with_token]
    selected.sort(key=lambda job: job.created_at)
    print_list(as_json, selected, _job_to_json, _COLUMNS)


def show(
    job_id: Annotated[
        str, typer.Argument(metavar="JOB", help="The id of the job, or the beginning of it.")
    ],
    jobs: Store = None,
    failed: Annotated[bool, "List the failed tasks."] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: its progress, its callback to Step Functions, and its error."""
    with _open_repository(jobs) as repository:
        job = repository.find_by_id(job_id)
        if job is None:
            job_id = complete_id(job_id, (each.job_id for each in _read_jobs(repository)))
            job = repository.find_by_id(job_id)
        if job is None:
            raise NotFound(
                f"there is no job {job_id!r} in this store: see `holdfast export list`"
            )
        tasks = list(read_failed_tasks(repository, job_id)) if failed else []
    tasks.sort(key=lambda task: task.key)
    if as_json:
        failures = [{"name": task.key, "error": task.error} for task in tasks]
        print_json({**_job_to_json(job), **({"failed_tasks": failures} if failed else {})})
        return
    print_facts(_describe_job(job, SYSTEM_CLOCK.time()))
    print_result(*(f"  {task.key}  {format_job_error(task.error)}" for task in tasks))


@contextmanager
def _open_repository(store: str | None) -> "Iterator[JobStateRepository]":
    from holdfast.exports.building import open_jobs

    remedy = (
        "name it with --jobs; for `holdfast export run --to FOLDER` that is `--jobs FOLDER`"
    )
    url = require_store(resolve_store(store), "there is no job store", remedy)
    with silence_log(), open_jobs(url) as repository:
        yield repository


def _read_jobs(
    repository: "JobStateRepository", statuses: Iterable[JobStatus] = JobStatus
) -> Iterator[ExportJob]:
    return (job for status in statuses for job in repository.find_by_status(status))


def read_failed_tasks(repository: "JobStateRepository", job_id: str) -> "Iterator[ExportTask]":
    """Yield the failed tasks of a job, in the order of their ids."""
    after = None
    while page := repository.tasks(job_id, status=TaskStatus.FAILED, after=after):
        yield from page
        after = page[-1].task_id


def tables(
    jobs: Store = None,
    create: CreateTables = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of a job store."""
    from holdfast.exports.checks import JOB_STORE

    show_tables(JOB_STORE, jobs or os.environ.get(STORE_VARIABLE, ""), create, as_json)


def doctor(
    jobs: Store = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TARGET", help="Check this target too.")
    ] = None,
    state_machine: Annotated[
        str | None,
        typer.Option(
            metavar="ARN|FILE.json", help="Check the timeouts of this state machine too."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, job store, target and state machine for problems."""
    from holdfast.exports.checks import examine_exports, examine_machine
    from holdfast.exports.target_check import examine_target

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


def _format_progress(job: ExportJob) -> str:
    state = job.state
    if not job.sealed:
        return "listing files" if not job.terminal else "-"
    failed = f", {state.failed_tasks:,} failed" if state.failed_tasks else ""
    return (
        f"{state.completed_tasks:,} of {state.total_tasks:,} done ({state.percent} %){failed}"
    )


_COLUMNS: dict[str, Callable[[ExportJob], str]] = {
    "job": lambda job: job.job_id,
    "status": lambda job: job.status.value,
    "progress": _format_progress,
    "age": lambda job: format_age(job.created_at, SYSTEM_CLOCK.time()),
    "last progress": lambda job: format_age(job.last_progress_at, SYSTEM_CLOCK.time()),
    "token": lambda job: str(job.task_token or "-"),
    "error": lambda job: job.error.code if job.error else "-",
}


def _describe_job(job: ExportJob, now: float) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for each fact of the job."""
    yield "job", job.job_id
    yield "status", job.status.value
    yield "progress", _format_progress(job)
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
