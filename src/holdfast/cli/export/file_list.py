"""Read the list of files for `holdfast export run`: a job, or lines.

A refusal names the line but repeats nothing of it, because a URL's query may hold signatures.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.cli.errors import InputRefused
from holdfast.jobs.errors import InvalidJob
from holdfast.jobs.request import JobRequest, TaskSpec, build_tasks, parse_manifest_line

_NO_ID = "no-id"  # a placeholder, until a list that names no job gets an id


@dataclass(frozen=True, slots=True)
class ExportList:
    """The files to export. `request.job_id` is meaningful only if `has_id`."""

    request: JobRequest
    has_id: bool

    @property
    def specs(self) -> tuple[TaskSpec, ...]:
        """Return the files."""
        return self.request.tasks or ()

    def compute_digest(self) -> str:
        """Return a digest of the files, which does not depend on the list's own name."""
        values = [(spec.url, spec.key, spec.checksum, spec.size) for spec in self.specs]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def read_list(path: str) -> ExportList:
    """Read the list in a file, or on standard input for `-`. Raises InputRefused, OSError."""
    name = "standard input" if path == "-" else path
    body = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
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
        specs = tuple(_parse_lines(text))
        return ExportList(JobRequest(_NO_ID, _NO_ID, "local", tasks=specs), has_id=False)
    request = JobRequest.parse(_fill_in(job))
    if request.token is not None:
        raise InvalidJob(
            "the job has a task token, so Step Functions waits for its result; only "
            "`holdfast export serve` can send that"
        )
    numbered = enumerate(request.tasks or (), 1)
    _check_names((f"task {number}", spec) for number, spec in numbered)
    return ExportList(request, has_id="jobId" in job or "job_id" in job)


def _parse_job(text: str) -> Mapping[str, Any] | None:
    """Return the job if the text is one, or None if it consists of lines."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().partition("\n")[0].rstrip().endswith("}"):
            return (
                None  # a complete object on the first line, so each line is parsed separately
            )
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


def _parse_lines(text: str) -> Iterator[TaskSpec]:
    numbered = list(_number_specs(text))
    _check_names(numbered)
    return (spec for _, spec in numbered)


def _number_specs(text: str) -> Iterator[tuple[str, TaskSpec]]:
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number}"
        try:
            spec = parse_manifest_line(line)
        except InvalidJob as problem:
            raise InvalidJob(f"{where}: {problem}") from None
        if spec is None:
            continue
        if "://" not in spec.url:
            raise InvalidJob(f"{where}: not a URL")
        yield where, spec


def _check_names(numbered: Any) -> None:
    """Check all names before any file is fetched.

    Raises InvalidJob with the place of the bad name.
    """
    where = ""

    def specs() -> Iterator[TaskSpec]:
        nonlocal where
        for where, spec in numbered:  # noqa: B007  # read if a name is refused
            yield spec

    try:
        for _ in build_tasks(_NO_ID, specs()):
            pass
    except InvalidJob as problem:
        raise InvalidJob(f"{where}: {problem}") from None
