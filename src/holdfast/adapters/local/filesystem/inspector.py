"""Looking without touching: counts and views for people."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.directory import QueueDirectory, is_deep
from holdfast.adapters.local.filesystem.history import AttemptHistory
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.adapters.local.filesystem.server_clock import ServerClock
from holdfast.adapters.local.filesystem.workers import WorkerRegistry
from holdfast.core.clock import utc
from holdfast.core.queue.manager import Holder, MessageInfo, MessageState, QueueStats

_PATTERNS = {
    MessageState.PENDING: names.PENDING,
    MessageState.LEASED: names.LEASED,
    MessageState.COMPLETED: names.COMPLETED,
    MessageState.FAILED: names.FAILED,
}


class Inspector:
    def __init__(
        self,
        tree: QueueDirectory,
        timeline: ServerClock,
        workers: WorkerRegistry,
        history: AttemptHistory,
        checkpoints: Checkpoints,
    ) -> None:
        self._tree, self._timeline, self._workers = tree, timeline, workers
        self._history, self._checkpoints = history, checkpoints

    def stats(self) -> QueueStats:
        now_ms = self._timeline.wall_ms()
        due = [int(m[4]) for _, m in self._files(MessageState.PENDING)]
        ready = [ms for ms in due if ms <= now_ms]
        leased = [m for _, m in self._files(MessageState.LEASED)]
        return QueueStats(
            ready=len(ready),
            delayed=len(due) - len(ready),
            leased=len(leased),
            expired=sum(map(self._seems_expired, leased)),
            completed=sum(1 for _ in self._files(MessageState.COMPLETED)),
            failed=sum(1 for _ in self._files(MessageState.FAILED)),
            foreign=len(self.foreign()),
            oldest_ready_seconds=(now_ms - min(ready)) / 1000 if ready else None,
        )

    def _seems_expired(self, leased: re.Match[str]) -> bool:
        """Estimate for people: a worker would watch a lease of another host before."""
        now = self._timeline.clock.monotonic()
        ended = self._workers.has_ended(leased, now)
        if ended is None:
            return names.deadline_ms(leased) <= self._timeline.stamp_ms(now)
        return ended

    def views(self, state: MessageState) -> Iterator[MessageInfo]:
        for path, match in self._files(state):
            if (view := self._view(state, path, match, deep=False)) is not None:
                yield view

    def find(self, message_id: str) -> list[MessageInfo]:
        id_hash = names.id_hash(message_id)
        found = []
        for state in MessageState:
            for path, match in self._files(state):
                if names.has_hash(match[1], id_hash) or match[1] == message_id:
                    view = self._view(state, path, match, deep=True)
                    if view and message_id in (view.id, view.key):
                        found.append(view)
        return found

    def foreign(self) -> list[str]:
        """Files and folders here that the queue did not make, and will not touch."""
        strange = []
        for state in MessageState:
            for folder in self._folders(state):
                strange += [
                    f"{folder}/{name}"
                    for name in self._tree.list_readable(folder)
                    if not _PATTERNS[state].fullmatch(name)
                    and not (state is MessageState.FAILED and names.REASON.fullmatch(name))
                ]
        strange += [f"pending/{n}" for n in self._tree.list("pending") if not _segment(n)]
        strange += [f"completed/{n}" for n in self._tree.list("completed") if not _hour(n)]
        return strange

    def _folders(self, state: MessageState) -> Iterator[str]:
        match state:
            case MessageState.PENDING:
                yield from (
                    f"pending/{n}" for n in sorted(self._tree.list("pending")) if _segment(n)
                )
            case MessageState.COMPLETED:
                yield from (
                    f"completed/{n}" for n in sorted(self._tree.list("completed")) if _hour(n)
                )
            case _:
                yield state.value

    def _files(self, state: MessageState) -> Iterator[tuple[str, re.Match[str]]]:
        for folder in self._folders(state):
            for name in sorted(self._tree.list_readable(folder)):
                if match := _PATTERNS[state].fullmatch(name):
                    yield f"{folder}/{name}", match

    def _view(
        self, state: MessageState, path: str, match: re.Match[str], *, deep: bool
    ) -> MessageInfo | None:
        task = names.task(match)
        body = self._tree.read_json(path)
        if body is None and not self._tree.exists(path):
            return None  # it moved on while we looked
        message_id = (body or {}).get("id")
        return MessageInfo(
            id=message_id if isinstance(message_id, str) and message_id else task.key,
            key=task.key,
            state=state,
            attempts=task.attempts,
            fence=task.fence,
            where=str(self._tree.folder / path),
            due_at=utc(int(match[4]) / 1000) if state is MessageState.PENDING else None,
            holder=self._holder(match) if state is MessageState.LEASED else None,
            reason=self._reason(task) if state is MessageState.FAILED else None,
            past=self._history.of(task.key) if deep else (),
            checkpoint=self._checkpoint(task) if deep else None,
            body=body,
        )

    def _reason(self, task: TaskName) -> str:
        if (data := self._tree.read_json(names.reason_path(task))) is None:
            return "unknown: its reason file is gone or cannot be read"
        reason = data.get("reason")
        return reason if isinstance(reason, str) else "unknown: its reason file holds no text"

    def _checkpoint(self, task: TaskName) -> Any:
        """The newest one there is; None when it is nested too deeply to be shown."""
        checkpoint = self._checkpoints.newest_before(task._replace(fence=task.fence + 1))
        return None if is_deep([checkpoint]) else checkpoint

    def _holder(self, match: re.Match[str]) -> Holder:
        token = match["worker"]
        card = self._workers.card(token)
        return Holder(
            worker_id=self._workers.worker_id(token),
            timestamp=utc(int(match["claimed_ms"]) / 1000),
            attempt=names.task(match).attempts,
            expires_at=utc(names.deadline_ms(match) / 1000),
            host=card.host if card else "",
            pid=card.pid if card else 0,
            last_seen=self._workers.last_seen(token),
        )


def _segment(name: str) -> bool:
    return names.SEGMENT.fullmatch(name) is not None


def _hour(name: str) -> bool:
    return names.HOUR.fullmatch(name) is not None
