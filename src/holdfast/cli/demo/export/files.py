"""What there is to export: files of many sizes, some of which are trouble to get."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Literal

from holdfast.jobs.model import task_id_of

JOB = "demo-export"

_KIB = 1024
_SIZES = [size * _KIB for size in (4096, 8, 64, 1024, 16, 256, 8, 512, 32, 128)]
_BLOCK = 8 << 20  # all files are pieces of one block of noise

Habit = Literal["good", "busy", "cut", "held", "missing"]
# By the order in which the service takes them: trouble comes early.
_HABITS: dict[int, Habit] = {0: "held", 3: "cut", 5: "busy", 8: "missing"}


@dataclass(frozen=True)
class DemoFile:
    """busy: answered with 503, twice. cut: its connection ends half-way, once. held: stops
    half-way until it is let go. missing: 404, whoever asks and whenever."""

    key: str
    data: memoryview
    habit: Habit

    @property
    def path(self) -> str:
        return f"/{self.key}"

    @cached_property
    def checksum(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def etag(self) -> str:
        return f'"{self.checksum[:16]}"'


def shelf(count: int, origin: str) -> list[DemoFile]:
    """So many files, in the order in which the service will take them: by task id."""
    noise = memoryview(Random(4).randbytes(_BLOCK))
    keys = [f"file-{number:03}.bin" for number in range(count)]
    keys.sort(key=lambda key: task_id_of(JOB, _url(origin, key), key))
    return [_file(rank, key, noise) for rank, key in enumerate(keys)]


def _file(rank: int, key: str, noise: memoryview) -> DemoFile:
    size, first = _SIZES[rank % len(_SIZES)], rank * 1021 % (_BLOCK // 2)
    return DemoFile(key, noise[first : first + size], _HABITS.get(rank, "good"))


def names(files: list[DemoFile], origin: str) -> dict[str, str]:
    """The file's name, by the task's id."""
    return {task_id_of(JOB, _url(origin, file.key), file.key): file.key for file in files}


def message(files: list[DemoFile], origin: str) -> dict[str, Any]:
    """The job, as the seed writes its message."""
    tasks = [
        {
            "url": _url(origin, file.key),
            "key": file.key,
            "checksum": f"sha256:{file.checksum}",
            "size": len(file.data),
        }
        for file in files
    ]
    return {"jobId": JOB, "exportId": "demo", "userId": "you", "tasks": tasks}


def _url(origin: str, key: str) -> str:
    return f"http://{origin}/{key}"
