"""One task as the pool hands it over, checked once more: it came over a wire."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast.adapters.export.checksums import Checksum, Digests
from holdfast.adapters.export.errors import TaskError
from holdfast.jobs.errors import InvalidJob
from holdfast.jobs.file_names import safe_key


@dataclass(frozen=True, slots=True)
class TaskInput:
    """What to fetch, what it is called then, and what is known of it."""

    task_id: str
    job_id: str
    url: str
    key: str
    bucket: str | None = None
    checksum: Checksum | None = None
    size: int | None = None

    @classmethod
    def read(cls, task: Mapping[str, Any]) -> Self:
        """Raises TaskError."""
        try:
            checksum, size = task.get("checksum"), task.get("size")
            return cls(
                str(task["taskId"]),
                str(task["jobId"]),
                str(task["url"]),
                safe_key(str(task["s3Key"])),
                task.get("s3Bucket"),
                Checksum.read(str(checksum)) if checksum else None,
                None if size is None else int(size),
            )
        except InvalidJob as error:
            raise TaskError("InvalidTask", str(error)) from None
        except KeyError as error:
            raise TaskError("InvalidTask", f"the task has no {error}") from None
        except (TypeError, ValueError):
            raise TaskError("InvalidTask", "the size is not a number") from None

    def verify(self, size: int, digests: Digests) -> None:
        """Raises TaskError unless these bytes are the file."""
        if self.size is not None and size != self.size:
            raise self.wrong_size(size)
        if self.checksum is not None and not digests.has(self.checksum):
            text = f"the bytes do not have the {self.checksum.algorithm} they should have"
            raise TaskError(
                "ChecksumMismatch", f"{self.key}: {text}", again=True, afresh=True, keep=False
            )

    def wrong_size(self, size: int) -> TaskError:
        text = f"{self.key}: {size} bytes or more, {self.size} were expected"
        return TaskError("SizeMismatch", text, again=True, afresh=True, keep=False)

    def __repr__(self) -> str:
        return f"Order({self.task_id})"
