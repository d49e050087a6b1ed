"""Checkpoints: what an attempt saved for the next one.

    checkpoints/<key>/<fence>.json

Each attempt writes a file of its own, so a zombie can never overwrite what its successor
saved; readers take the newest before their own. Each task has a folder of its own, so
that finding them takes as long as there are checkpoints of this task, however often it
was claimed and however many other tasks have some.
"""

import json
from typing import Any

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.core.errors import MalformedMessage, MessageTooLarge
from holdfast.core.queue.message import MAX_BYTES


class Checkpoints:
    def __init__(self, tree: QueueDirectory) -> None:
        self._tree = tree

    def save(self, task: TaskName, value: Any) -> None:
        try:
            body = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(f"a checkpoint must be plain JSON data: {error}") from None
        if len(body) > MAX_BYTES:
            raise MessageTooLarge(
                f"the checkpoint is {len(body):,} bytes, the limit is {MAX_BYTES:,}: store it "
                "elsewhere and save its address"
            )
        folder = _folder(task.key)
        for path in ("checkpoints", folder):
            self._tree.make(path)
        self._tree.put(f"{folder}/{task.fence}.json", body)
        if self._tree.durable:
            self._tree.sync(folder)

    def newest_before(self, task: TaskName) -> Any:
        for fence in reversed(self._fences(task.key)):
            if fence >= task.fence:
                continue
            try:
                body = self._tree.read(f"{_folder(task.key)}/{fence}.json", 2 * MAX_BYTES)
                return json.loads(body)
            except (FileNotFoundError, PermissionError, ValueError, RecursionError):
                continue  # gone, or not ours: an older one may do
        return None

    def forget(self, key: str) -> None:
        """Remove all that the attempts of a finished task saved."""
        folder = _folder(key)
        for name in filter(names.CHECKPOINT.fullmatch, self._tree.list_readable(folder)):
            self._tree.remove(f"{folder}/{name}")
        self._tree.remove_folder(folder)

    def keys(self) -> set[str]:
        """Tasks of which something was saved and not forgotten."""
        return set(self._tree.list("checkpoints"))

    def _fences(self, key: str) -> list[int]:
        found = map(names.CHECKPOINT.fullmatch, self._tree.list_readable(_folder(key)))
        return sorted(int(match[1]) for match in found if match)


def _folder(key: str) -> str:
    return f"checkpoints/{key}"
