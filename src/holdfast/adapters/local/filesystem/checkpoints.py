"""Checkpoints: what an attempt saved for the next one.

Each attempt writes a file of its own (the fence is in its name), so a zombie can never
overwrite what its successor saved; readers take the newest before their own.
"""

import json
import secrets
from typing import Any

from holdfast.adapters.local.filesystem.names import Task
from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.core.errors import MalformedMessage, MessageTooLarge
from holdfast.core.message import MAX_BYTES


class Checkpoints:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def save(self, task: Task, value: Any) -> None:
        try:
            body = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(f"a checkpoint must be plain JSON data: {error}") from None
        if len(body) > MAX_BYTES:
            raise MessageTooLarge(
                f"the checkpoint is {len(body):,} bytes, the limit is {MAX_BYTES:,}: store it "
                "elsewhere and save its address"
            )
        temporary = f"tmp/{task.key}-{secrets.token_hex(8)}"
        self._tree.write(temporary, body)
        if self._tree.durable:
            self._tree.sync(temporary)
        self._tree.publish(temporary, _path(task.key, task.fence))
        if self._tree.durable:
            self._tree.sync("checkpoints")

    def newest_before(self, task: Task) -> Any:
        for fence in range(task.fence - 1, 0, -1):
            try:
                return json.loads(self._tree.read(_path(task.key, fence), 2 * MAX_BYTES))
            except FileNotFoundError:
                continue
            except (ValueError, RecursionError):
                continue  # not ours: an older one may do
        return None

    def forget(self, task: Task) -> None:
        for fence in range(task.fence, 0, -1):
            self._tree.remove(_path(task.key, fence))


def _path(key: str, fence: int) -> str:
    return f"checkpoints/{key}~{fence}.json"
