"""The read-only commands `holdfast export list` and `show`. Task tokens are masked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import print_json, print_result, print_table, strip_control_characters
from holdfast.cli.errors import NotFound, UsageError, silence_log
from holdfast.cli.export.options import Store, require_store, resolve_store
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.jobs.model import ExportTask, JobStatus
    from holdfast.jobs.ports import JobStateRepository

_STATUSES = "PROCESSING|DOWNLOADING|COMPLETED|FAILED"


def list_(
    jobs: Store = None,
    status: Annotated[
        str | None, typer.Option(metavar=_STATUSES, help="Show only jobs with this status.")
    ] = None,
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Show only jobs that Step Functions waits for.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a store, oldest first."""
    from holdfast.cli.export.formatting import HEADINGS, job_to_json, job_to_row

    statuses = _parse_statuses(status)
    with _open_repository(jobs) as repository:
        selected = [job for status in statuses for job in repository.find_by_status(status)]
    selected = [job for job in selected if job.has_task_token() or not with_token]
    selected.sort(key=lambda job: job.created_at)
    if as_json:
        print_json([job_to_json(job) for job in selected])
        return
    now = SYSTEM_CLOCK.time()
    print_table(HEADINGS, [job_to_row(job, now) for job in selected])


def _parse_statuses(text: str | None) -> "list[JobStatus]":
    from holdfast.jobs.model import JobStatus

    if text is None:
        return list(JobStatus)
    try:
        return [JobStatus(text.upper())]
    except ValueError:
        raise UsageError(
            f"--status must be one of {', '.join(JobStatus)}; got {text!r}"
        ) from None


def show(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The id of the job.")],
    jobs: Store = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the failed tasks.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: its progress, its callback to Step Functions, and its error."""
    from holdfast.cli.export.formatting import (
        describe_job,
        format_job_error,
        job_to_json,
        task_to_json,
    )

    with _open_repository(jobs) as repository:
        job = repository.find_by_id(job_id)
        if job is None:
            raise NotFound(
                f"there is no job {job_id!r} in this store: see `holdfast export list`"
            )
        tasks = list(_read_failed_tasks(repository, job_id)) if failed else []
    if as_json:
        more = {"failed_tasks": [task_to_json(task) for task in tasks]} if failed else {}
        print_json({**job_to_json(job), **more})
        return
    for heading, text in describe_job(job, SYSTEM_CLOCK.time()):
        print_result(f"{heading:<14} {strip_control_characters(text)}")
    for task in tasks:
        error = strip_control_characters(format_job_error(task.error))
        print_result(f"  {strip_control_characters(task.key)}  {error}")


@contextmanager
def _open_repository(store: str | None) -> "Iterator[JobStateRepository]":
    from holdfast.bootstrap.exports import open_jobs

    url = require_store(resolve_store(store))
    with silence_log(), open_jobs(url) as repository:
        yield repository


def _read_failed_tasks(repository: "JobStateRepository", job_id: str) -> "Iterator[ExportTask]":
    from holdfast.jobs.model import TaskStatus

    after = None
    while page := repository.tasks(job_id, status=TaskStatus.FAILED, after=after):
        yield from page
        after = page[-1].task_id
