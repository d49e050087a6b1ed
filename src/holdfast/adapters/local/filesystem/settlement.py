"""Settling a claim: completed, put back or dead-lettered.

Each is one rename of the claim's own name in leased/.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.claims import Claim
from holdfast.adapters.local.filesystem.dead_letters import DeadLetterFolder
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.history import AttemptHistory
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.adapters.local.filesystem.producer import Producer
from holdfast.adapters.local.filesystem.server_clock import ServerClock
from holdfast.adapters.local.filesystem.workers import WorkerRegistry
from holdfast.core.clock import to_utc
from holdfast.core.errors import LeaseLost


class Settlement:
    """Settles claims. Each method returns LeaseLost if another worker took the task over.

    Then it has changed nothing.
    """

    def __init__(
        self,
        directory: QueueDirectory,
        server_clock: ServerClock,
        workers: WorkerRegistry,
        producer: Producer,
        dead: DeadLetterFolder,
        history: AttemptHistory,
        checkpoints: Checkpoints,
    ) -> None:
        self._directory, self._server_clock, self._workers = directory, server_clock, workers
        self._producer, self._dead_letters = producer, dead
        self._history, self._checkpoints = history, checkpoints
        self._completed = (-1, "")

    def complete(self, claims: Sequence[Claim]) -> list[LeaseLost | None]:
        """Move completed tasks to completed/, and remove their checkpoints."""
        now_ms = self._server_clock.read_wall_ms()
        folder = self._completed_folder(now_ms)
        results = [self._complete(claim, folder, now_ms) for claim in claims]
        if self._directory.durable:
            self._directory.sync(
                *{os.path.dirname(claim.path) for claim in claims} | {"leased"}
            )
        return results

    def _complete(self, claim: Claim, folder: str, now_ms: int) -> LeaseLost | None:
        target = names.format_completed_path(folder, claim.task.stem, claim.worker, now_ms)
        lost = self._end(claim, target)
        if lost is None and (claim.saved or claim.task.fence > 1):
            with suppress(OSError):  # the task is completed; a purge removes what is left
                self._checkpoints.forget(claim.task.key)
        return lost

    def _completed_folder(self, now_ms: int) -> str:
        second = now_ms // 1000
        if self._completed[0] != second:  # check once a second, as it may become a link
            folder = f"completed/{to_utc(second):%Y-%m-%dT%H}"
            self._directory.refuse_links("completed", folder)
            if folder != self._completed[1]:
                self._directory.make_folder(folder)
            self._completed = (second, folder)
        return self._completed[1]

    def put_back(self, claim: Claim, delay_seconds: float, *, refund: bool) -> LeaseLost | None:
        """Move a task back to pending/. With `refund`, the claim is not charged."""
        task = claim.task.refunded() if refund else claim.task
        target = self._producer.choose_path(task.stem, delay_seconds)
        lost = self._end(claim, target)
        if lost is None:
            self._producer.sync_parents([claim.path])
        return lost

    def dead_letter(
        self, claim: Claim, message_id: str, reason: str, detail: str | None
    ) -> LeaseLost | None:
        """Move a task to failed/, with its reason."""
        cause = (message_id, reason, detail, self._workers.get_worker_id(claim.worker))
        self._dead_letters.write_reason(claim.task, *cause)
        id_hash = self._dead_letters.mark(claim.task, message_id)
        if lost := self._end(claim, names.format_failed_path(claim.task)):
            self._dead_letters.remove_reason(claim.task)
            return lost
        if not self._directory.exists(names.format_reason_path(claim.task)):
            # The file server's clock was set, and a sweep took the new reason for an old
            # leftover.
            self._dead_letters.write_reason(claim.task, *cause)
        self._dead_letters.sync()
        if id_hash is not None:
            self._dead_letters.free_id(claim.task, id_hash)
        self.add_history(claim.task, "dead-lettered", claim.worker, reason, detail)
        return None

    def _end(self, claim: Claim, target: str) -> LeaseLost | None:
        """Move the claimed task to `target`.

        The call can be repeated, because the task has moved already if a failed sync
        interrupted the settlement.
        """
        with claim.lock:
            if claim.closed:
                return (
                    None
                    if _get_state_folder(claim.path) == _get_state_folder(target)
                    else make_lease_lost()
                )
            if not self._directory.move(claim.path, target):
                return make_lease_lost()
            claim.path, claim.closed = target, True
        return None

    def add_history(
        self, task: TaskName, outcome: str, worker: str, reason: str, detail: str | None = None
    ) -> None:
        """Add a line to the history, if possible.

        The history is only for operators, so a full disk must not undo a settlement.
        """
        with suppress(OSError):
            self._history.add(
                task,
                outcome,
                at=to_utc(self._server_clock.read_wall_ms() / 1000),
                worker_id=self._workers.get_worker_id(worker),
                reason=reason,
                detail=detail,
            )


def _get_state_folder(path: str) -> str:
    return path.partition("/")[0]


def make_lease_lost() -> LeaseLost:
    """Return the error of a claim whose task was taken over."""
    return LeaseLost("the lease is gone: another worker took the message over")
