"""failed/: the dead letters, each with a reason a person can act on."""

import json
from collections.abc import Iterator
from contextlib import suppress

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.history import History
from holdfast.adapters.local.filesystem.ids import Ids
from holdfast.adapters.local.filesystem.names import Task
from holdfast.adapters.local.filesystem.producer import Producer
from holdfast.adapters.local.filesystem.timeline import Timeline
from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.core.clock import utc


class DeadLetters:
    def __init__(
        self,
        tree: Tree,
        producer: Producer,
        history: History,
        checkpoints: Checkpoints,
        ids: Ids,
        timeline: Timeline,
    ) -> None:
        self._tree, self._producer, self._history = tree, producer, history
        self._checkpoints, self._ids, self._timeline = checkpoints, ids, timeline

    def write_reason(
        self, task: Task, message_id: str, reason: str, detail: str | None, worker_id: str
    ) -> None:
        """Before the task moves: a dead letter without a reason helps nobody."""
        body = {
            "message_id": message_id,
            "reason": reason,
            "attempts": task.attempts,
            "last_worker": worker_id,
            "at": utc(self._timeline.wall_ms() / 1000).isoformat(),
            "detail": detail,
        }
        self._tree.refuse_links("failed")
        self._tree.put(names.reason_path(task), json.dumps(body, indent=1).encode())

    def remove_reason(self, task: Task) -> None:
        self._tree.remove(names.reason_path(task))

    def sync(self) -> None:
        if self._tree.durable:
            self._tree.sync("failed", "leased")

    def why_exhausted(self, task: Task) -> str:
        """For a task that was claimed too often: what its last attempt died of."""
        past = self._history.of(task.key)
        last = f"; the last: {past[-1].reason}" if past else ""
        return f"gave up after {task.attempts - 1} attempts{last}"

    def all(self) -> Iterator[Task]:
        for name in sorted(self._tree.list("failed")):
            if match := names.FAILED.fullmatch(name):
                yield names.task(match)

    def of(self, message_id: str) -> list[Task]:
        """Dead letters of one id; an unreadable one goes by its key."""
        id_hash = names.id_hash(message_id)
        return [
            task
            for task in self.all()
            if task.key == message_id
            or (names.has_hash(task.key, id_hash) and self._id(task) == message_id)
        ]

    def _id(self, task: Task) -> str | None:
        """None when the letter cannot be read: then it goes by its key."""
        body = self._tree.read_json(names.failed_path(task)) or {}
        reason = self._tree.read_json(names.reason_path(task)) or {}
        known = body.get("id") or reason.get("message_id")
        return known if isinstance(known, str) and known != task.key else None

    def redrive(self, task: Task) -> bool:
        """Back to pending/, all attempts refunded; False when somebody was faster."""
        message_id = self._id(task)
        target = self._producer.place(task._replace(refunds=task.fence).stem, 0.0)
        if message_id is None or not self._ids.in_use():
            moved = self._move_back(task, target)
        else:
            id_hash = names.id_hash(message_id)
            with self._ids.turn(id_hash):  # a push of the id waits until we are done
                moved = self._take_id(id_hash, task) and self._move_back(task, target)
        if not moved:
            return False
        self._producer.sync_places([target])
        self.remove_reason(task)
        now = utc(self._timeline.wall_ms() / 1000)
        with suppress(OSError):  # it is back, whatever becomes of the line about it
            self._history.add(
                task, "redriven", at=now, worker_id="", reason="redriven by a person"
            )
        return True

    def drop(self, task: Task) -> bool:
        """False when somebody redrove it meanwhile: then it needs what belongs to it."""
        if not self._tree.remove(names.failed_path(task)):
            return False
        self.remove_reason(task)
        self._history.forget(task.key)
        self._checkpoints.forget(task.key)
        return True

    def _move_back(self, task: Task, target: str) -> bool:
        return self._tree.move(names.failed_path(task), target, only_ours=False)

    def _take_id(self, id_hash: str, task: Task) -> bool:
        """Within the turn: take the id back, unless it was pushed again meanwhile."""
        if self._ids.belongs_to(id_hash, names.failed_path(task)):
            return True  # it never lost it
        if self._ids.alive(id_hash):
            return False
        self._ids.free(id_hash)
        try:
            self._tree.link(names.failed_path(task), names.id_path(id_hash))
        except FileNotFoundError:
            return False
        if self._tree.durable:
            self._tree.sync("ids")
        return True
