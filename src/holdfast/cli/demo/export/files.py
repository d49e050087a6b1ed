"""The files to export, of many sizes, some of which are difficult to fetch."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Literal

from holdfast.jobs.model import derive_task_id

JOB = "demo-export"

_KIB = 1024
_SIZES = [size * _KIB for size in (4096, 8, 64, 1024, 16, 256, 8, 512, 32, 128)]
_BLOCK = 8 << 20  # all files are slices of one block of noise

Habit = Literal["good", "busy", "cut", "held", "missing"]
# By the order in which the service takes them, so that difficulties come early.
_HABITS: dict[int, Habit] = {0: "held", 3: "cut", 5: "busy", 8: "missing"}


@dataclass(frozen=True)
class DemoFile:
    """A file of the server, with how the server behaves.

    busy: the first two requests get 503.
    cut: the first connection ends half-way.
    held: the response stops half-way until the server may continue.
    missing: every request gets 404.
    """

    key: str
    data: memoryview
    habit: Habit

    @cached_property
    def checksum(self) -> str:
        """Return the SHA-256."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def etag(self) -> str:
        """Return the ETag."""
        return f'"{self.checksum[:16]}"'


def make_files(count: int, origin: str) -> list[DemoFile]:
    """Return `count` files in the order in which the service takes them, by task id."""
    noise = memoryview(Random(4).randbytes(_BLOCK))
    keys = [f"file-{number:03}.bin" for number in range(count)]
    keys.sort(key=lambda key: derive_task_id(JOB, _make_url(origin, key), key))
    return [_make_file(rank, key, noise) for rank, key in enumerate(keys)]


def _make_file(rank: int, key: str, noise: memoryview) -> DemoFile:
    size, first = _SIZES[rank % len(_SIZES)], rank * 1021 % (_BLOCK // 2)
    return DemoFile(key, noise[first : first + size], _HABITS.get(rank, "good"))


def map_task_names(files: list[DemoFile], origin: str) -> dict[str, str]:
    """Return each file's name by its task's id."""
    return {
        derive_task_id(JOB, _make_url(origin, file.key), file.key): file.key for file in files
    }


def make_job_message(files: list[DemoFile], origin: str) -> dict[str, Any]:
    """Return the message of the job, in the seed's format."""
    tasks = [
        {
            "url": _make_url(origin, file.key),
            "key": file.key,
            "checksum": f"sha256:{file.checksum}",
            "size": len(file.data),
        }
        for file in files
    ]
    return {"jobId": JOB, "exportId": "demo", "userId": "you", "tasks": tasks}


def _make_url(origin: str, key: str) -> str:
    return f"http://{origin}/{key}"
