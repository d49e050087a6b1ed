"""The list of files that `holdfast export run` is given: a job, or lines.

What is wrong is refused with its line. Nothing of a line is repeated: a URL's query holds
signatures.
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
from holdfast.jobs.request import JobRequest, TaskSpec, spec_of, tasks_of

_NO_ID = "no-id"  # stands where a file names no job, until the list has one


@dataclass(frozen=True, slots=True)
class ExportList:
    """What is to be exported. `request.job_id` is of use only when `has_id`."""

    request: JobRequest
    has_id: bool

    @property
    def specs(self) -> tuple[TaskSpec, ...]:
        return self.request.tasks or ()

    def digest(self) -> str:
        """The same list, the same digest, whatever the file is called."""
        said = [(one.url, one.key, one.checksum, one.size) for one in self.specs]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def read_list(path: str) -> ExportList:
    """The list in a file, or on standard input for `-`. Raises InputRefused, OSError."""
    name = "standard input" if path == "-" else path
    body = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return _listed(_text(body))
    except InvalidJob as problem:
        raise InputRefused(f"{name}: {problem}") from None


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + body.count(b"\n", 0, error.start)
        raise InvalidJob(f"line {line}: not UTF-8 text: convert it first") from None


def _listed(text: str) -> ExportList:
    job = _job_in(text)
    if job is None:
        specs = tuple(_with_lines(text))
        return ExportList(JobRequest(_NO_ID, _NO_ID, "local", tasks=specs), has_id=False)
    request = JobRequest.read(_completed(job))
    if request.token is not None:
        raise InvalidJob(
            "this job has a task token: somebody waits for its answer, which only "
            "`holdfast export serve` gives"
        )
    _check_names((f"task {number}", one) for number, one in enumerate(request.tasks or (), 1))
    return ExportList(request, has_id="jobId" in job or "job_id" in job)


def _job_in(text: str) -> Mapping[str, Any] | None:
    """The job that the whole text is; None: it is lines."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().partition("\n")[0].rstrip().endswith("}"):
            return None  # a whole object on the first line: each is looked at by itself
        line, why = getattr(error, "lineno", 1), getattr(error, "msg", "cannot be read")
        raise InvalidJob(f"line {line}: not JSON: {why}") from None
    return None if "url" in value and "tasks" not in value else value


def _completed(job: Mapping[str, Any]) -> dict[str, Any]:
    """With what a file may leave out, and a message may not."""
    if job.get("tasks") is None:
        raise InvalidJob('the job has no "tasks": list them, or give a file of URLs')
    return {
        **({} if "job_id" in job else {"jobId": _NO_ID}),
        **({} if "export_id" in job else {"exportId": job.get("jobId", _NO_ID)}),
        **({} if "user_id" in job else {"userId": "local"}),
        **job,
    }


def _with_lines(text: str) -> Iterator[TaskSpec]:
    numbered = list(_numbered(text))
    _check_names(numbered)
    return (spec for _, spec in numbered)


def _numbered(text: str) -> Iterator[tuple[str, TaskSpec]]:
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number}"
        try:
            spec = spec_of(line)
        except InvalidJob as problem:
            raise InvalidJob(f"{where}: {problem}") from None
        if spec is None:
            continue
        if "://" not in spec.url:
            raise InvalidJob(f"{where}: this is no URL")
        yield where, spec


def _check_names(numbered: Any) -> None:
    """Before anything is fetched. Raises InvalidJob with the place of the bad name."""
    where = ""

    def specs() -> Iterator[TaskSpec]:
        nonlocal where
        for where, spec in numbered:  # noqa: B007  # read when a name is refused
            yield spec

    try:
        for _ in tasks_of(_NO_ID, specs()):
            pass
    except InvalidJob as problem:
        raise InvalidJob(f"{where}: {problem}") from None
