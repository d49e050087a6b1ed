"""One task as the pool hands it over, checked once more because it came over a pipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast.adapters.export.checksums import Checksum, Digests
from holdfast.adapters.export.errors import TaskError
from holdfast.jobs.errors import InvalidJob
from holdfast.jobs.file_names import normalize_key


@dataclass(frozen=True, slots=True)
class TaskInput:
    """The URL of a file, its name in the target, and what is known about its bytes."""

    task_id: str
    job_id: str
    url: str
    key: str
    bucket: str | None = None
    checksum: Checksum | None = None
    size: int | None = None

    @classmethod
    def parse(cls, task: Mapping[str, Any]) -> Self:
        """Parse a task from the pool. Raises TaskError."""
        try:
            checksum, size = task.get("checksum"), task.get("size")
            return cls(
                str(task["taskId"]),
                str(task["jobId"]),
                str(task["url"]),
                normalize_key(str(task["s3Key"])),
                task.get("s3Bucket"),
                Checksum.parse(str(checksum)) if checksum else None,
                None if size is None else int(size),
            )
        except InvalidJob as error:
            raise TaskError("InvalidTask", str(error)) from None
        except KeyError as error:
            raise TaskError("InvalidTask", f"the task has no {error}") from None
        except (TypeError, ValueError):
            raise TaskError("InvalidTask", "the size is not a number") from None

    def verify(self, size: int, digests: Digests) -> None:
        """Raise TaskError unless the received bytes are the expected file."""
        if self.size is not None and size != self.size:
            raise self.make_size_error(size)
        if self.checksum is not None and not digests.has(self.checksum):
            text = f"the bytes do not have the expected {self.checksum.algorithm} checksum"
            raise TaskError(
                "ChecksumMismatch",
                f"{self.key}: {text}",
                retryable=True,
                start_over=True,
                keep=False,
            )

    def make_size_error(self, size: int) -> TaskError:
        """Return the error of a file that has another size than expected."""
        text = f"{self.key}: {size} bytes or more, {self.size} were expected"
        return TaskError("SizeMismatch", text, retryable=True, start_over=True, keep=False)

    def __repr__(self) -> str:
        return f"TaskInput({self.task_id})"
