"""Read the list of files for `holdfast export run`, and decide which job it is.

    list ── new ────────────▶ ID            all files
         ── not finished ───▶ ID            continue
         ── COMPLETED ──────▶ nothing to do
         ── FAILED ─────────▶ ID.2, ID.3 …  the failed and unfinished files

A finished job is never changed, so a retry is another job. A refusal of a list names the line
but repeats nothing of it, because a URL's query may hold signatures.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.cli.arguments import STDIN, open_input
from holdfast.cli.console import InputRefused, UsageError
from holdfast.exports.building import check_download_url
from holdfast.exports.commands.inspect import read_tasks
from holdfast.exports.errors import InvalidJob
from holdfast.exports.model import ExportJob, JobStatus, TaskStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.request import JobRequest, TaskSpec, build_tasks, parse_manifest_line
from holdfast.text import format_count

_NO_ID = "no-id"  # a placeholder, until a list that names no job gets an id
_TARGET, _LIST = "target", "list"  # the metadata that a job's id stands for


@dataclass(frozen=True, slots=True)
class ExportList:
    """The files to export. `request.job_id` is meaningful only if `has_id`."""

    request: JobRequest
    has_id: bool

    def compute_digest(self) -> str:
        """Return a digest of the files, which does not depend on the list's own name."""
        specs = self.request.tasks or ()
        values = [(spec.url, spec.key, spec.checksum, spec.size) for spec in specs]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def read_list(path: str) -> ExportList:
    """Read the list in a file, or on standard input for `-`.

    Raises InputRefused, and UsageError if it cannot be opened.
    """
    name = "standard input" if path == STDIN else path
    with open_input(path) as stream:
        body = stream.read()
    try:
        return _parse_list(_decode(body))
    except InvalidJob as problem:
        raise InputRefused(f"{name}: {problem}") from None


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + body.count(b"\n", 0, error.start)
        raise InvalidJob(f"line {line}: not UTF-8 text; convert it first") from None


def _parse_list(text: str) -> ExportList:
    job = _parse_job(text)
    if job is None:
        numbered = list(_number_lines(text))
        request = JobRequest(_NO_ID, _NO_ID, "local", tasks=tuple(s for _, s in numbered))
    else:
        request = JobRequest.parse(_fill_in(job))
        if request.token is not None:
            raise InvalidJob(
                "the job has a task token, so Step Functions waits for its result; only "
                "`holdfast export serve` can send that"
            )
        specs = enumerate(request.tasks or (), 1)
        numbered = [(f"task {number}", spec) for number, spec in specs]
    if not numbered:
        raise InvalidJob("it names no files; give one URL per line")
    _check_files(numbered)
    return ExportList(request, has_id=bool(job and {"jobId", "job_id"} & job.keys()))


def _parse_job(text: str) -> Mapping[str, Any] | None:
    """Return the job if the text is one, or None if it consists of lines."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().partition("\n")[0].rstrip().endswith("}"):
            return None  # a complete object on the first line, so each line is one
        line, reason = getattr(error, "lineno", 1), getattr(error, "msg", "cannot be read")
        raise InvalidJob(f"line {line}: not JSON: {reason}") from None
    return None if "url" in value and "tasks" not in value else value


def _fill_in(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job with the fields that a file may leave out but a message may not."""
    if job.get("tasks") is None:
        raise InvalidJob('the job has no "tasks"; list them, or give a file of URLs')
    return {
        **({} if "job_id" in job else {"jobId": _NO_ID}),
        **({} if "export_id" in job else {"exportId": job.get("jobId", _NO_ID)}),
        **({} if "user_id" in job else {"userId": "local"}),
        **job,
    }


def _number_lines(text: str) -> Iterator[tuple[str, TaskSpec]]:
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number}"
        try:
            spec = parse_manifest_line(line)
        except InvalidJob as problem:
            raise InvalidJob(f"{where}: {problem}") from None
        if spec is not None:
            yield where, spec


def _check_files(numbered: Iterable[tuple[str, TaskSpec]]) -> None:
    """Check all URLs and names before any file is fetched. Raises InvalidJob with the place."""
    where = ""

    def check_urls() -> Iterator[TaskSpec]:
        nonlocal where
        for where, spec in numbered:  # noqa: B007  # read if a name is refused
            check_download_url(spec.url)
            yield spec

    try:
        for _ in build_tasks(_NO_ID, check_urls()):
            pass
    except InvalidJob as problem:
        raise InvalidJob(f"{where}: {problem}") from None


# -- plans


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step for a list.

    `existing_job` is the job in the store, or None if it is new. `done` means that nothing
    is left to do. `summary` is shown to the user.
    """

    request: JobRequest
    existing_job: ExportJob | None
    summary: str
    done: bool = False


def make_plan(files: ExportList, target: str, jobs: JobStateRepository) -> Plan:
    """Return the plan for a list and a target, which is an absolute path or a URL.

    Raises InputRefused or UsageError if the store has a different job with that id.
    """
    first = _make_first_request(files, target)
    total = len(first.tasks or ())
    all_files = format_count(total, "file")
    plan = Plan(first, jobs.find_by_id(first.job_id), f"{all_files} to fetch")
    if plan.existing_job is not None:
        _require_same_job(plan.existing_job, first)
    for number in range(2, 1_000_000):
        job = plan.existing_job
        if job is None:
            return plan
        if job.status is JobStatus.COMPLETED:
            summary = f"{all_files}: all done before, nothing to do"
            return replace(plan, summary=summary, done=True)
        if not job.terminal:
            return replace(plan, summary=_describe_resumed(job))
        specs = tuple(_find_unfinished(plan.request, job, jobs))
        request = replace(first, job_id=f"{first.job_id}.{number}", tasks=specs)
        summary = _describe_retry(job, len(specs), total)
        plan = Plan(request, jobs.find_by_id(request.job_id), summary)
    raise UsageError(f"job {first.job_id!r} was retried a million times; use another store")


def _make_first_request(files: ExportList, target: str) -> JobRequest:
    digest = files.compute_digest()
    job_id = files.request.job_id
    if not files.has_id:
        job_id = f"run-{hashlib.sha256(f'{target} {digest}'.encode()).hexdigest()[:12]}"
    metadata = {**(files.request.metadata or {}), _TARGET: target, _LIST: digest}
    export_id = files.request.export_id if files.has_id else job_id
    return replace(files.request, job_id=job_id, export_id=export_id, metadata=metadata)


def _require_same_job(job: ExportJob, request: JobRequest) -> None:
    """Check the target and the list of an existing job, which its id does not show."""
    stored, requested = job.metadata, request.metadata or {}
    if stored.get(_TARGET) != requested[_TARGET]:
        other = stored.get(_TARGET, "another target")
        raise UsageError(
            f"job {job.job_id!r} of this store exports to {other}; "
            "use another store (--jobs) or another jobId"
        )
    if stored.get(_LIST) != requested[_LIST]:
        raise InputRefused(
            f"job {job.job_id!r} of this store has another list; give this list "
            "another jobId, or none"
        )


def _find_unfinished(
    request: JobRequest, job: ExportJob, jobs: JobStateRepository
) -> Iterator[TaskSpec]:
    """Yield the files that a failed job did not complete.

    These are all files if the job failed before all of its tasks were stored.
    """
    if not job.sealed:
        yield from request.tasks or ()
        return
    for task in read_tasks(jobs, job.job_id):
        if task.status is not TaskStatus.COMPLETED:
            yield TaskSpec(url=task.url, key=task.key, checksum=task.checksum, size=task.size)


# -- summaries


def _describe_resumed(job: ExportJob) -> str:
    if not job.sealed:
        return "continuing: its files were being listed"
    failed = f", {job.state.failed_tasks:,} failed" if job.state.failed_tasks else ""
    done = f"{job.state.completed_tasks:,} of {job.state.total_tasks:,}"
    return f"continuing: {done} are done{failed}"


def _describe_retry(job: ExportJob, left: int, total: int) -> str:
    if job.sealed and left == job.state.failed_tasks:
        return f"{left:,} of {total:,} had failed; retrying those"
    return f"{left:,} of {total:,} had failed or were not done; retrying those"
