"""failed/: the dead letters, each with a reason that an operator can act on."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import ceil
from typing import Any, NamedTuple

from holdfast.lease.clock import to_utc
from holdfast.queue.info import CANCELLED, MessageInfo
from holdfast.queue.manager import MAX_SECONDS, Progress
from holdfast.queues.files import layout
from holdfast.queues.files.dedupe import DedupeIndex, IdLockBusy
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName
from holdfast.queues.files.producer import Producer
from holdfast.queues.files.task_notes import TaskNotes
from holdfast.queues.files.workers import ServerClock

_MAX_LEASE_MS = int(MAX_SECONDS * 1000)


class Cause(NamedTuple):
    """Why a task becomes a dead letter."""

    message_id: str
    worker_id: str
    reason: str
    detail: str | None = None
    outcome: str = "dead-lettered"
    lease_seconds: float | None = None  # of a holder from whom the task is taken


class DeadLetterFolder:
    """The dead letters of a queue, in failed/."""

    def __init__(
        self,
        directory: QueueDirectory,
        producer: Producer,
        notes: TaskNotes,
        dedupe: DedupeIndex,
        server_clock: ServerClock,
    ) -> None:
        self._directory, self._producer, self._notes = directory, producer, notes
        self._dedupe, self._server_clock = dedupe, server_clock

    def add(self, task: TaskName, cause: Cause, move: Callable[[str], bool]) -> bool:
        """Write the reason, move the task to failed/ with `move`, and free its id.

        Returns False, and has changed nothing, if `move` does.
        """
        self._write_reason(task, cause)
        # Mark the task before it moves, because its id may be free soon; see dedupe.py.
        id_hash = self._dedupe.mark(task.key, cause.message_id)
        if not move(task.failed_path):
            if not self._directory.exists(task.failed_path):  # unless another cancel moved it
                self._directory.remove(task.reason_path)
            return False
        if not self._directory.exists(task.reason_path):
            # The file server's clock was set, and a sweep took the new reason for an old
            # leftover.
            self._write_reason(task, cause)
        if self._directory.durable:
            self._directory.sync("failed", "leased")
        if id_hash is not None:
            # If that is not possible without waiting, the next push of the id or a sweep
            # frees it, because of the mark.
            with suppress(OSError, IdLockBusy), self._dedupe.lock_id(id_hash, wait_seconds=0.0):
                self._dedupe.free_dead_letter(id_hash, task.key, task.failed_path)
        self._notes.add_attempt(
            task, cause.outcome, cause.worker_id, cause.reason, cause.detail
        )
        return True

    def _write_reason(self, task: TaskName, cause: Cause) -> None:
        """Write a task's reason before it moves, so that no dead letter lacks a reason."""
        now_ms = self._server_clock.read_wall_ms()
        body = {
            "message_id": cause.message_id,
            "reason": cause.reason,
            "attempts": task.attempts,
            "last_worker": cause.worker_id,
            "at": to_utc(now_ms / 1000).isoformat(),
            "detail": cause.detail,
        }
        if cause.lease_seconds is not None:
            body |= {"at_ms": now_ms, "lease_ms": ceil(cause.lease_seconds * 1000)}
        self._directory.refuse_links("failed")
        self._directory.put(task.reason_path, json.dumps(body, indent=1).encode())

    def cancel(self, path: str, info: MessageInfo) -> bool:
        """Move a task that waits or is leased to failed/; return False if it has moved."""
        worker_id, lease_seconds = "", None
        if info.holder:
            worker_id, lease_seconds = info.holder.worker_id, info.holder.lease_seconds
        return self.add(
            layout.to_task(info).cancelled(),
            Cause(info.id, worker_id, CANCELLED, None, "cancelled", lease_seconds),
            lambda target: self._directory.rename(path, target, target_is_unique=False),
        )

    def find(self, message_id: str | None = None) -> Iterator[TaskName]:
        """Find all dead letters, or those of one id. An unreadable one is found by its key.

        Raises PermissionError if failed/ is closed, so that it is not taken for empty.
        """
        id_hash = layout.hash_id(message_id or "")
        listed = sorted(self._directory.list("failed"))
        for match in filter(None, map(layout.FAILED.fullmatch, listed)):
            task = layout.parse_task(match)
            if message_id in (None, task.key) or (
                layout.has_hash(task.key, id_hash) and self._read_id(task) == message_id
            ):
                yield task

    def _read_id(self, task: TaskName) -> str | None:
        """Return the id of a dead letter, or None if it cannot be read."""
        body = self._directory.read_json(task.failed_path) or {}
        known = body.get("id") or self._read_reason(task).get("message_id")
        return known if isinstance(known, str) and known != task.key else None

    def _read_reason(self, task: TaskName) -> dict[str, Any]:
        return self._directory.read_json(task.reason_path) or {}

    def redrive(self, tasks: Iterable[TaskName], on_progress: Progress) -> int:
        """Move dead letters back to pending/ with all attempts refunded; return how many.

        Dead letters whose id was pushed again stay. Raises IdLockBusy if another process does
        not release an id; the dead letters before that one were moved.
        """
        uses_dedupe = self._dedupe.is_in_use()
        redriven = 0
        for task in tasks:
            redriven += self._redrive(task, uses_dedupe=uses_dedupe)
            on_progress(1)
        return redriven

    def _redrive(self, task: TaskName, *, uses_dedupe: bool) -> bool:
        stem = task._replace(refunds=task.fence).stem
        target = self._producer.choose_path(stem, self._compute_held_ms(task) / 1000)
        if uses_dedupe:
            with self._dedupe.lock_id(task.key[10:]):  # a push of the id waits for this
                moved = self._move_back_with_id(task, target)
        else:
            moved = self._move_back(task, target)
        if moved:
            self._directory.remove(task.reason_path)
            self._notes.add_attempt(task, "redriven", "", "redriven by an operator")
        return moved

    def _compute_held_ms(self, task: TaskName) -> int:
        """Return for how long the holder of a cancelled task may still trust its lease.

        It cannot have renewed the lease after the cancel, so not for longer than the lease.
        """
        match self._read_reason(task):
            case {"at_ms": int(at_ms), "lease_ms": int(lease_ms)} if lease_ms <= _MAX_LEASE_MS:
                left_ms = at_ms + lease_ms - self._server_clock.read_wall_ms()
                return max(0, min(lease_ms, left_ms))
        return 0

    def drop(self, task: TaskName, message_id: str) -> bool:
        """Remove a dead letter with its reason, history and checkpoints.

        Returns False if it was redriven meanwhile. Then all of these are still needed.
        """
        # An interrupted dead-lettering or redrive may have left the record. Without the dead
        # letter it would keep the id taken.
        if id_hash := self._dedupe.find_hash(task.key, message_id):
            with self._dedupe.lock_id(id_hash):
                self._dedupe.free_dead_letter(id_hash, task.key, task.failed_path)
        if not self._directory.remove(task.failed_path):
            return False
        self._dedupe.remove_marks(task.key)
        self._directory.remove(task.reason_path)
        self._notes.forget_attempts(task.key)
        self._notes.forget_checkpoints(task.key)
        return True

    def _move_back(self, task: TaskName, target: str) -> bool:
        moved = self._directory.move(task.failed_path, target, target_is_unique=False)
        if moved:
            self._producer.sync_parent(target)
        return moved

    def _move_back_with_id(self, task: TaskName, target: str) -> bool:
        """With the id lock: make the record first, so that no push of the id intervenes."""
        message_id = self._read_id(task)
        id_hash = layout.hash_id(message_id) if message_id else ""
        if not layout.has_hash(task.key, id_hash):  # unreadable, or its id was edited
            return self._move_back(task, target)
        if not self._dedupe.reclaim_id(id_hash, task):
            return False
        moved = self._move_back(task, target)
        if moved:
            self._dedupe.remove_redrive_mark(task.key)
        else:
            self._dedupe.free_if_owned_by(id_hash, task.key)  # it was dropped meanwhile
        return moved
