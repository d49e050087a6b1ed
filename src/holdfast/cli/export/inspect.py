"""`holdfast export list` and `show`. Neither changes anything, and no token is shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import print_json, print_result, print_table, strip_control_characters
from holdfast.cli.errors import NotFound, UsageError, report_errors
from holdfast.cli.export.options import Store, must_be_there, store_or_default
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.jobs.model import ExportTask, JobStatus
    from holdfast.jobs.ports import JobStateRepository

_STATUSES = "PROCESSING|DOWNLOADING|COMPLETED|FAILED"


def list_(
    jobs: Store = None,
    status: Annotated[str | None, typer.Option(metavar=_STATUSES, help="Only those.")] = None,
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Only jobs that Step Functions waits for.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The jobs of a store, oldest first."""
    from holdfast.cli.export.formatting import HEADINGS, as_json_object, row_of

    wanted = _statuses(status)
    with _opened(jobs) as repository:
        found = [job for one in wanted for job in repository.find_by_status(one)]
    found = [job for job in found if job.has_task_token() or not with_token]
    found.sort(key=lambda job: job.created_at)
    if as_json:
        print_json([as_json_object(job) for job in found])
        return
    now = SYSTEM_CLOCK.time()
    print_table(HEADINGS, [row_of(job, now) for job in found])


def _statuses(text: str | None) -> "list[JobStatus]":
    from holdfast.jobs.model import JobStatus

    if text is None:
        return list(JobStatus)
    try:
        return [JobStatus(text.upper())]
    except ValueError:
        raise UsageError(f"--status {text!r}: it is one of {', '.join(JobStatus)}") from None


def show(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The id of the job.")],
    jobs: Store = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the failed tasks.")] = False,
    as_json: AsJson = False,
) -> None:
    """A job: how far it is, who waits for it, and why it failed."""
    from holdfast.cli.export.formatting import as_json_object, said, story, task_object

    with _opened(jobs) as repository:
        job = repository.find_by_id(job_id)
        if job is None:
            raise NotFound(
                f"there is no job {job_id!r}: `holdfast export list` shows those there are"
            )
        tasks = list(_failed_tasks(repository, job_id)) if failed else []
    if as_json:
        more = {"failed_tasks": [task_object(task) for task in tasks]} if failed else {}
        print_json({**as_json_object(job), **more})
        return
    for heading, text in story(job, SYSTEM_CLOCK.time()):
        print_result(f"{heading:<14} {strip_control_characters(text)}")
    for task in tasks:
        print_result(
            f"  {strip_control_characters(task.key)}  {strip_control_characters(said(task.error))}"
        )


@contextmanager
def _opened(store: str | None) -> "Iterator[JobStateRepository]":
    from holdfast.bootstrap.exports import open_jobs

    url = must_be_there(store_or_default(store))
    with report_errors(), open_jobs(url) as repository:
        yield repository


def _failed_tasks(repository: "JobStateRepository", job_id: str) -> "Iterator[ExportTask]":
    from holdfast.jobs.model import TaskStatus

    after = None
    while page := repository.tasks(job_id, status=TaskStatus.FAILED, after=after):
        yield from page
        after = page[-1].task_id
