"""Ways a hold ends: done, put back, buried. Each is one rename of our own leased name."""

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
from holdfast.core.clock import utc
from holdfast.core.errors import LeaseLost


class Settlement:
    """Each returns LeaseLost, and has changed nothing, when the hold is not ours any more."""

    def __init__(
        self,
        tree: QueueDirectory,
        timeline: ServerClock,
        workers: WorkerRegistry,
        producer: Producer,
        dead: DeadLetterFolder,
        history: AttemptHistory,
        checkpoints: Checkpoints,
    ) -> None:
        self._tree, self._timeline, self._workers = tree, timeline, workers
        self._producer, self._dead = producer, dead
        self._history, self._checkpoints = history, checkpoints
        self._made = (-1, "")

    def complete(self, holds: Sequence[Claim]) -> list[LeaseLost | None]:
        now_ms = self._timeline.wall_ms()
        folder = self._completed_folder(now_ms)
        results = [self._complete(hold, folder, now_ms) for hold in holds]
        if self._tree.durable:
            self._tree.sync(*{os.path.dirname(hold.path) for hold in holds} | {"leased"})
        return results

    def _complete(self, hold: Claim, folder: str, now_ms: int) -> LeaseLost | None:
        target = names.completed_path(folder, hold.task.stem, hold.worker, now_ms)
        lost = self._end(hold, target)
        if lost is None and (hold.saved or hold.task.fence > 1):
            with suppress(OSError):  # it is done; what is left of it is a matter of tidiness
                self._checkpoints.forget(hold.task.key)
        return lost

    def _completed_folder(self, now_ms: int) -> str:
        second = now_ms // 1000
        if self._made[0] != second:  # looked at once a second: it may turn into a link
            folder = f"completed/{utc(second):%Y-%m-%dT%H}"
            self._tree.refuse_links("completed", folder)
            if folder != self._made[1]:
                self._tree.make(folder)
            self._made = (second, folder)
        return self._made[1]

    def put_back(self, hold: Claim, delay_seconds: float, *, refund: bool) -> LeaseLost | None:
        task = hold.task.refunded() if refund else hold.task
        target = self._producer.place(task.stem, delay_seconds)
        lost = self._end(hold, target)
        if lost is None:
            self._producer.sync_places([hold.path])
        return lost

    def bury(
        self, hold: Claim, message_id: str, reason: str, detail: str | None
    ) -> LeaseLost | None:
        why = (message_id, reason, detail, self._workers.worker_id(hold.worker))
        self._dead.write_reason(hold.task, *why)
        id_hash = self._dead.mark(hold.task, message_id)
        if lost := self._end(hold, names.failed_path(hold.task)):
            self._dead.remove_reason(hold.task)
            return lost
        if not self._tree.exists(names.reason_path(hold.task)):
            # The file server's clock was set: a sweep took the new reason for an old leftover.
            self._dead.write_reason(hold.task, *why)
        self._dead.sync()
        if id_hash is not None:
            self._dead.free_id(hold.task, id_hash)
        self.note(hold.task, "dead-lettered", hold.worker, reason, detail)
        return None

    def _end(self, hold: Claim, target: str) -> LeaseLost | None:
        """Repeatable: what a refused sync interrupted has moved already."""
        with hold.lock:
            if hold.closed:
                return None if _state(hold.path) == _state(target) else lease_lost()
            if not self._tree.move(hold.path, target):
                return lease_lost()
            hold.path, hold.closed = target, True
        return None

    def note(
        self, task: TaskName, outcome: str, worker: str, reason: str, detail: str | None = None
    ) -> None:
        """AttemptHistory is for people; a disk too full for it must not undo what was settled."""
        with suppress(OSError):
            self._history.add(
                task,
                outcome,
                at=utc(self._timeline.wall_ms() / 1000),
                worker_id=self._workers.worker_id(worker),
                reason=reason,
                detail=detail,
            )


def _state(path: str) -> str:
    return path.partition("/")[0]


def lease_lost() -> LeaseLost:
    return LeaseLost("the lease is gone: another worker took the message over")
