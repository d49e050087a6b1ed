"""failed/: the dead letters, each with a reason that an operator can act on."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from math import ceil

from holdfast.errors import LeaseLost
from holdfast.lease.clock import to_utc
from holdfast.queue.info import CANCELLED, MessageInfo
from holdfast.queue.manager import MAX_SECONDS, Progress
from holdfast.queues.files import layout
from holdfast.queues.files.claims import Claim, make_lease_lost
from holdfast.queues.files.dedupe import DedupeIndex, IdLockBusy, WaitBudget
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName
from holdfast.queues.files.producer import Producer
from holdfast.queues.files.server_clock import ServerClock
from holdfast.queues.files.task_notes import TaskNotes

_MAX_LEASE_MS = int(MAX_SECONDS * 1000)


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

    def add(
        self,
        claim: Claim,
        message_id: str,
        reason: str,
        detail: str | None,
        worker_id: str,
    ) -> LeaseLost | None:
        """Move a claimed task to failed/, with its reason.

        Returns LeaseLost, and has changed nothing, if the task was taken away.
        """
        moved = self._add(
            claim.task,
            (message_id, reason, detail, worker_id, None),
            lambda target: claim.settle(self._directory, target) is None,
        )
        return None if moved else make_lease_lost()

    def cancel(self, path: str, info: MessageInfo) -> bool:
        """Move a task that waits or is leased to failed/; return False if it has moved."""
        task = layout.to_task(info).cancelled()
        worker_id = info.holder.worker_id if info.holder else ""
        lease_seconds = info.holder.lease_seconds if info.holder else None
        moved = self._add(
            task,
            (info.id, CANCELLED, None, worker_id, lease_seconds),
            lambda target: self._directory.rename(path, target, target_is_unique=False),
        )
        if moved:
            self._notes.add_attempt(task, "cancelled", worker_id, CANCELLED)
        return moved

    def _add(
        self,
        task: TaskName,
        cause: tuple[str, str, str | None, str, float | None],
        move: Callable[[str], bool],
    ) -> bool:
        """Write the reason, move the task with `move`, and free its id.

        Returns False, and has changed nothing, if `move` does.
        """
        self._write_reason(task, *cause)
        # Mark the task before it moves, because its id may be free soon; see dedupe.py.
        id_hash = self._dedupe.mark(task.key, message_id=cause[0])
        target = layout.format_failed_path(task)
        if not move(target):
            if not self._directory.exists(target):  # unless another operator cancelled it
                self._remove_reason(task)
            return False
        if not self._directory.exists(layout.format_reason_path(task)):
            # The file server's clock was set, and a sweep took the new reason for an old
            # leftover.
            self._write_reason(task, *cause)
        if self._directory.durable:
            self._directory.sync("failed", "leased")
        if id_hash is not None:
            self._free_id(task, id_hash)
        return True

    def _write_reason(
        self,
        task: TaskName,
        message_id: str,
        reason: str,
        detail: str | None,
        worker_id: str,
        lease_seconds: float | None,
    ) -> None:
        """Write a task's reason before it moves, so that no dead letter lacks a reason."""
        now_ms = self._server_clock.read_wall_ms()
        body = {
            "message_id": message_id,
            "reason": reason,
            "attempts": task.attempts,
            "last_worker": worker_id,
            "at": to_utc(now_ms / 1000).isoformat(),
            "detail": detail,
        }
        if lease_seconds is not None:
            body |= {"at_ms": now_ms, "lease_ms": ceil(lease_seconds * 1000)}
        self._directory.refuse_links("failed")
        self._directory.put(
            layout.format_reason_path(task), json.dumps(body, indent=1).encode()
        )

    def _free_id(self, task: TaskName, id_hash: str) -> None:
        """Free the id of a task that moved, if that is possible without waiting.

        Otherwise the next push of the id or a sweep does it, because of the mark.
        """
        with suppress(OSError, IdLockBusy), self._dedupe.lock_id(id_hash, wait_seconds=0.0):
            self._dedupe.free_dead_letter(id_hash, task.key, layout.format_failed_path(task))

    def _remove_reason(self, task: TaskName) -> None:
        self._directory.remove(layout.format_reason_path(task))

    def list_all(self) -> Iterator[TaskName]:
        """List all dead letters, by name."""
        for name in sorted(self._directory.list("failed")):
            if match := layout.FAILED.fullmatch(name):
                yield layout.parse_task(match)

    def find(self, message_id: str) -> list[TaskName]:
        """Find the dead letters of one id. An unreadable one is found by its key."""
        id_hash = layout.hash_id(message_id)
        return [
            task
            for task in self.list_all()
            if task.key == message_id
            or (layout.has_hash(task.key, id_hash) and self._read_id(task) == message_id)
        ]

    def _read_id(self, task: TaskName) -> str | None:
        """Return the id of a dead letter, or None if it cannot be read."""
        body = self._directory.read_json(layout.format_failed_path(task)) or {}
        known = body.get("id")
        if not known:
            known = (self._directory.read_json(layout.format_reason_path(task)) or {}).get(
                "message_id"
            )
        return known if isinstance(known, str) and known != task.key else None

    def redrive(self, tasks: Iterable[TaskName], on_progress: Progress) -> int:
        """Move dead letters back to pending/ with all attempts refunded; return how many.

        Dead letters whose id was pushed again stay. If an id lock was busy, it raises
        QueueUnavailable after the others were moved.
        """
        budget = WaitBudget()
        uses_dedupe = self._dedupe.is_in_use()
        redriven = 0
        for task in tasks:
            redriven += self._redrive(task, budget if uses_dedupe else None)
            on_progress(1)
        budget.check(f"redriven {redriven:,}")
        return redriven

    def _redrive(self, task: TaskName, budget: WaitBudget | None) -> bool:
        stem = task._replace(refunds=task.fence).stem
        target = self._producer.choose_path(stem, self._compute_held_ms(task) / 1000)
        if budget is None:
            moved = self._move_back(task, target)
        else:  # a push of the id waits until this is done
            moved = bool(
                self._dedupe.run_locked(
                    task.key[10:], budget, lambda: self._move_back_with_id(task, target)
                )
            )
        if not moved:
            return False
        self._remove_reason(task)
        self._notes.add_attempt(task, "redriven", "", "redriven by an operator")
        return True

    def _compute_held_ms(self, task: TaskName) -> int:
        """Return for how long the holder of a cancelled task may still trust its lease.

        It cannot have renewed the lease after the cancel, so not for longer than the lease.
        """
        match self._directory.read_json(layout.format_reason_path(task)):
            case {"at_ms": int(at_ms), "lease_ms": int(lease_ms)} if lease_ms <= _MAX_LEASE_MS:
                left_ms = at_ms + lease_ms - self._server_clock.read_wall_ms()
                return max(0, min(lease_ms, left_ms))
        return 0

    def drop(self, task: TaskName, message_id: str) -> bool:
        """Remove a dead letter with its reason, history and checkpoints.

        Returns False if it was redriven meanwhile. Then all of these are still needed.
        """
        path = layout.format_failed_path(task)
        # An interrupted dead-lettering or redrive may have left the record. Without the dead
        # letter it would keep the id taken.
        if id_hash := self._dedupe.find_hash(task.key, message_id):
            with self._dedupe.lock_id(id_hash):
                self._dedupe.free_dead_letter(id_hash, task.key, path)
        if not self._directory.remove(path):
            return False
        self._dedupe.remove_marks(task.key)
        self._remove_reason(task)
        self._notes.forget_attempts(task.key)
        self._notes.forget_checkpoints(task.key)
        return True

    def _move_back(self, task: TaskName, target: str) -> bool:
        moved = self._directory.move(
            layout.format_failed_path(task), target, target_is_unique=False
        )
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
