"""failed/: the dead letters, each with a reason a person can act on."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.dedupe import DedupeIndex, TurnBusy, WaitBudget
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.history import AttemptHistory
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.adapters.local.filesystem.producer import Producer
from holdfast.adapters.local.filesystem.server_clock import ServerClock
from holdfast.core.clock import utc
from holdfast.core.queue.manager import Progress


class DeadLetterFolder:
    def __init__(
        self,
        tree: QueueDirectory,
        producer: Producer,
        history: AttemptHistory,
        checkpoints: Checkpoints,
        ids: DedupeIndex,
        timeline: ServerClock,
    ) -> None:
        self._tree, self._producer, self._history = tree, producer, history
        self._checkpoints, self._ids, self._timeline = checkpoints, ids, timeline

    def write_reason(
        self, task: TaskName, message_id: str, reason: str, detail: str | None, worker_id: str
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

    def mark(self, task: TaskName, message_id: str) -> str | None:
        """Before the task moves: make known that its id may be free soon; see ids.py."""
        return self._ids.mark(task.key, message_id)

    def free_id(self, task: TaskName, id_hash: str) -> None:
        """After it moved, if that is possible without waiting: with its mark, the next push
        of the id or a sweep does the same."""
        with suppress(OSError, TurnBusy), self._ids.turn(id_hash, wait_seconds=0.0):
            self._ids.free_dead(id_hash, task.key, names.failed_path(task))

    def remove_reason(self, task: TaskName) -> None:
        self._tree.remove(names.reason_path(task))

    def sync(self) -> None:
        if self._tree.durable:
            self._tree.sync("failed", "leased")

    def why_exhausted(self, task: TaskName) -> str:
        """For a task that was claimed too often: what its last attempt died of."""
        past = self._history.of(task.key)
        last = f"; the last: {past[-1].reason}" if past else ""
        return f"gave up after {task.attempts - 1} attempts{last}"

    def all(self) -> Iterator[TaskName]:
        for name in sorted(self._tree.list("failed")):
            if match := names.FAILED.fullmatch(name):
                yield names.task(match)

    def of(self, message_id: str) -> list[TaskName]:
        """Dead letters of one id; an unreadable one goes by its key."""
        id_hash = names.id_hash(message_id)
        return [
            task
            for task in self.all()
            if task.key == message_id
            or (names.has_hash(task.key, id_hash) and self._id(task) == message_id)
        ]

    def _id(self, task: TaskName) -> str | None:
        """None when the letter cannot be read: then it goes by its key."""
        body = self._tree.read_json(names.failed_path(task)) or {}
        known = body.get("id")
        if not known:
            known = (self._tree.read_json(names.reason_path(task)) or {}).get("message_id")
        return known if isinstance(known, str) and known != task.key else None

    def redrive(self, tasks: Iterable[TaskName], on_progress: Progress) -> int:
        """Move dead letters back to pending/, all attempts refunded; returns how many.

        Those whose id was pushed again stay. Raises QueueUnavailable after the others
        were moved if a turn was busy.
        """
        budget = WaitBudget()
        dedupe = self._ids.in_use()
        redriven = 0
        for task in tasks:
            redriven += self._redrive(task, budget if dedupe else None)
            on_progress(1)
        budget.check(f"redriven {redriven:,}")
        return redriven

    def _redrive(self, task: TaskName, budget: WaitBudget | None) -> bool:
        target = self._producer.place(task._replace(refunds=task.fence).stem, 0.0)
        if budget is None:
            moved = self._move_back(task, target)
        else:  # a push of the id waits until this is done
            moved = bool(
                self._ids.attempt(
                    task.key[10:], budget, lambda: self._move_back_with_id(task, target)
                )
            )
        if not moved:
            return False
        self.remove_reason(task)
        now = utc(self._timeline.wall_ms() / 1000)
        with suppress(OSError):  # it is back, whatever becomes of the line about it
            self._history.add(
                task, "redriven", at=now, worker_id="", reason="redriven by a person"
            )
        return True

    def drop(self, task: TaskName, message_id: str) -> bool:
        """False when somebody redrove it meanwhile: then it needs what belongs to it."""
        path = names.failed_path(task)
        # What is left of a burial or a redrive: without the letter it would take the id.
        if id_hash := self._ids.hash_for(task.key, message_id):
            with self._ids.turn(id_hash):
                self._ids.free_dead(id_hash, task.key, path)
        if not self._tree.remove(path):
            return False
        self._ids.unmark(task.key)
        self.remove_reason(task)
        self._history.forget(task.key)
        self._checkpoints.forget(task.key)
        return True

    def _move_back(self, task: TaskName, target: str) -> bool:
        moved = self._tree.move(names.failed_path(task), target, only_ours=False)
        if moved:
            self._producer.sync_places([target])
        return moved

    def _move_back_with_id(self, task: TaskName, target: str) -> bool:
        """Within the turn: the record first, so that no push of the id comes in between."""
        message_id = self._id(task)
        id_hash = names.id_hash(message_id) if message_id else ""
        if not names.has_hash(task.key, id_hash):  # unreadable, or a person changed its id
            return self._move_back(task, target)
        if not self._ids.take(id_hash, task):
            return False
        moved = self._move_back(task, target)
        if moved:
            self._ids.redriven(task.key)
        else:
            self._ids.free_if(id_hash, task.key)  # it was dropped meanwhile
        return moved
