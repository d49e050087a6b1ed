"""A job's message, checked. Nothing in it is trusted.

    {"jobId": "abc-123", "exportId": "export-456", "userId": "user-789",
     "taskToken": "AAAA…",                                       optional, from Step Functions
     "tasks": [{"url": "https://…/a.pdf", "key": "a.pdf", "checksum": "sha256:…"}]}

Without `tasks`, the tasks are looked up by `exportId`. Names may also be in snake case, as
in job_id.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel

from holdfast.exports.errors import InvalidJob
from holdfast.exports.file_names import key_from_url, normalize_key
from holdfast.exports.model import ExportJob, ExportTask, TaskToken

# A job's id becomes the name of a folder and a part of object names.
_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_MAX_TOKEN = 2048  # what Step Functions accepts
_CHECKSUM = re.compile(r"^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$", re.IGNORECASE)


class TaskSpec(BaseModel):
    """One file, as the message or a manifest describes it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    url: str = Field(min_length=1, max_length=8192)
    key: str | None = Field(
        default=None, min_length=1, validation_alias=AliasChoices("key", "name", "s3Key")
    )
    checksum: str | None = Field(default=None, pattern=_CHECKSUM)
    size: int | None = Field(default=None, ge=0)


class _Message(BaseModel):
    model_config = ConfigDict(
        extra="ignore", alias_generator=to_camel, populate_by_name=True, frozen=True
    )

    job_id: str = Field(pattern=_ID)
    export_id: str = Field(pattern=_ID)
    user_id: str = Field(min_length=1, max_length=256)
    task_token: SecretStr | None = Field(default=None, min_length=1, max_length=_MAX_TOKEN)
    tasks: list[TaskSpec] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A valid request for a job."""

    job_id: str
    export_id: str
    user_id: str
    token: TaskToken | None = None
    tasks: tuple[TaskSpec, ...] | None = None
    metadata: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Check a message. Raises InvalidJob, whose text never quotes the message."""
        try:
            message = _Message.model_validate(data)
        except ValidationError as error:
            raise InvalidJob(_describe_problems(error)) from None
        token = message.task_token
        return cls(
            message.job_id,
            message.export_id,
            message.user_id,
            None if token is None else TaskToken(token.get_secret_value()),
            None if message.tasks is None else tuple(message.tasks),
            message.metadata,
        )

    def to_job(self, now: float) -> ExportJob:
        """Return a new job, created at `now`."""
        return ExportJob.create(
            self.job_id,
            self.export_id,
            self.user_id,
            task_token=self.token,
            now=now,
            metadata=self.metadata,
        )


def find_token(data: Mapping[str, Any]) -> TaskToken | None:
    """Return the token of a message that may be invalid, because an execution waits for it."""
    for name in ("taskToken", "task_token"):
        token = data.get(name)
        if isinstance(token, str) and 0 < len(token) <= _MAX_TOKEN:
            return TaskToken(token)
    return None


def build_tasks(job_id: str, specs: Iterable[TaskSpec]) -> Iterator[ExportTask]:
    """Yield the tasks of a job; a file that is listed twice is one task.

    Raises InvalidJob for a name that cannot be used, and for a name of two files.
    """
    seen: set[tuple[str, str | None]] = set()
    names: set[str] = set()
    for spec in specs:
        if (spec.url, spec.key) in seen:
            continue
        seen.add((spec.url, spec.key))
        key = normalize_key(spec.key) if spec.key else key_from_url(spec.url, names)
        if key in names:
            raise InvalidJob(f"two files want the name {key!r}: give one of them another key")
        names.add(key)
        yield ExportTask.create(job_id, spec.url, key, spec.checksum, spec.size)


def parse_manifest_line(line: str) -> TaskSpec | None:
    """Parse one line of a manifest, which is a URL or a JSON object.

    Returns None for an empty line or a comment. Raises InvalidJob.
    """
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    try:
        return TaskSpec.model_validate_json(line) if line[0] == "{" else TaskSpec(url=line)
    except ValidationError as error:
        raise InvalidJob(_describe_problems(error)) from None


def parse_manifest(lines: Iterable[str]) -> Iterator[TaskSpec]:
    """Yield the files that a manifest lists. Raises InvalidJob with the bad line's number."""
    for number, line in enumerate(lines, 1):
        try:
            spec = parse_manifest_line(line)
        except InvalidJob as problem:
            raise InvalidJob(f"line {number}: {problem}") from None
        if spec is not None:
            yield spec


def _describe_problems(error: ValidationError) -> str:
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [
        f"{'.'.join(map(str, problem['loc'])) or 'the job'}: {problem['msg']}"
        for problem in problems
    ]
    more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
    return "; ".join(lines[:5]) + more
