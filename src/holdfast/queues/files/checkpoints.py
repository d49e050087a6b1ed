"""Checkpoints: data that an attempt saves for the next attempt.

    checkpoints/<key>/<fence>.json

Each attempt writes a file of its own, so a stale holder can never overwrite the checkpoint
of its successor. A reader takes the newest one before its own. Each task has a folder of its
own, so the time to find its checkpoints depends only on how many it has, and not on how
often it was claimed or on the checkpoints of other tasks.
"""

import json
from typing import Any

from holdfast.errors import MalformedMessage, MessageTooLarge
from holdfast.queue.message import MAX_BYTES
from holdfast.queues.files import names
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.names import TaskName


class Checkpoints:
    """The checkpoints of all tasks of a queue."""

    def __init__(self, directory: QueueDirectory) -> None:
        self._directory = directory

    def save(self, task: TaskName, value: Any) -> None:
        """Save the checkpoint of an attempt, and replace its earlier one.

        Raises MalformedMessage if `value` is not plain JSON data, and MessageTooLarge.
        """
        try:
            body = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(f"a checkpoint must be plain JSON data: {error}") from None
        if len(body) > MAX_BYTES:
            raise MessageTooLarge(
                f"the checkpoint is {len(body):,} bytes, the limit is {MAX_BYTES:,}: store it "
                "elsewhere and save its address"
            )
        folder = _format_folder(task.key)
        for path in ("checkpoints", folder):
            self._directory.make_folder(path)
        self._directory.put(f"{folder}/{task.fence}.json", body)
        if self._directory.durable:
            self._directory.sync(folder)

    def load_newest_before(self, task: TaskName) -> Any:
        """Return the newest readable checkpoint of an earlier attempt, or None."""
        for fence in reversed(self._list_fences(task.key)):
            if fence >= task.fence:
                continue
            try:
                body = self._directory.read(
                    f"{_format_folder(task.key)}/{fence}.json", 2 * MAX_BYTES
                )
                return json.loads(body)
            except (FileNotFoundError, PermissionError, ValueError, RecursionError):
                continue  # missing or unreadable: an older one may be usable
        return None

    def forget(self, key: str) -> None:
        """Remove all checkpoints of a finished task."""
        folder = _format_folder(key)
        for name in filter(names.CHECKPOINT.fullmatch, self._directory.list_readable(folder)):
            self._directory.remove(f"{folder}/{name}")
        self._directory.remove_folder(folder)

    def list_keys(self) -> set[str]:
        """List the keys of all tasks that have checkpoints."""
        return set(self._directory.list("checkpoints"))

    def _list_fences(self, key: str) -> list[int]:
        matches = map(
            names.CHECKPOINT.fullmatch, self._directory.list_readable(_format_folder(key))
        )
        return sorted(int(match["fence"]) for match in matches if match)


def _format_folder(key: str) -> str:
    return f"checkpoints/{key}"
