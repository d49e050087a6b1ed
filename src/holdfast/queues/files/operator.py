"""What operators see and do: counts, messages, dead letters, and removing what is old."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from holdfast.lease.clock import to_utc
from holdfast.queue.info import (
    Holder,
    MessageInfo,
    MessagePage,
    MessageState,
    QueueStats,
    QueueWorker,
)
from holdfast.queue.operator import Progress, QueueOperator, ignore_progress
from holdfast.queues.files import layout
from holdfast.queues.files.dead_letters import DeadLetterFolder
from holdfast.queues.files.dedupe import LISTING_PASSES
from holdfast.queues.files.directory import QueueDirectory, is_deep
from holdfast.queues.files.housekeeping import SWEEP_SECONDS, Housekeeping
from holdfast.queues.files.layout import TaskName
from holdfast.queues.files.task_notes import TaskNotes
from holdfast.queues.files.workers import ServerClock, WorkerRegistry

_LIVE = (MessageState.PENDING, MessageState.LEASED)
_SEEN_LATELY_SECONDS = 3600.0


def count_stats(
    directory: QueueDirectory, server_clock: ServerClock, workers: WorkerRegistry
) -> QueueStats:
    """Count the messages in each state."""
    now_ms, now = server_clock.read_wall_ms(), server_clock.clock.monotonic()
    pending, leased, completed, failed = (
        layout.list_tasks(directory, state) for state in MessageState
    )
    due = [_parse_due_ms(path, match, now_ms) for path, match in pending]
    ready = [ms for ms in due if ms <= now_ms]
    expired = [workers.has_probably_ended(match, now) for _, match in leased]
    return QueueStats(
        ready=len(ready),
        delayed=len(due) - len(ready),
        leased=len(expired),
        expired=sum(expired),
        completed=sum(1 for _ in completed),
        failed=sum(1 for _ in failed),
        foreign=len(layout.find_foreign(directory)),
        oldest_ready_seconds=(now_ms - min(ready)) / 1000 if ready else None,
    )


class FilesOperator(QueueOperator):
    """The raw access of operators to one queue in a folder."""

    def __init__(
        self,
        name: str,
        capabilities: frozenset[str],
        directory: QueueDirectory,
        server_clock: ServerClock,
        workers: WorkerRegistry,
        notes: TaskNotes,
        dead_letters: DeadLetterFolder,
        housekeeping: Housekeeping,
    ) -> None:
        super().__init__(name, capabilities)
        self._directory, self._server_clock, self._workers = directory, server_clock, workers
        self._notes = notes
        self._dead_letters, self._housekeeping = dead_letters, housekeeping

    # -- reading

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        yield from islice(self.scan((state,), with_history=False), limit)

    def scan(
        self, states: Iterable[MessageState], *, with_history: bool
    ) -> Iterator[MessageInfo]:
        with self._directory.translate_errors():
            for state in states:
                for path, match in layout.list_tasks(self._directory, state):
                    info = self._read_info(state, path, match, deep=with_history)
                    if info is not None:
                        yield info

    def browse(
        self, state: MessageState, *, after: str | None = None, limit: int = 50
    ) -> MessagePage:
        """Return a page of messages in the order of their files' paths."""
        page: list[MessageInfo] = []
        last = None
        with self._directory.translate_errors():
            for path, match in layout.list_tasks(self._directory, state):
                if after is not None and path <= after:
                    continue
                if len(page) == limit:
                    return MessagePage(page, last)
                if (info := self._read_info(state, path, match, deep=False)) is not None:
                    page.append(replace(info, body=None))
                    last = path
        return MessagePage(page)

    def workers(self) -> list[QueueWorker]:
        now_ms = self._server_clock.read_wall_ms()
        with self._directory.translate_errors():
            return self._workers.list_workers(to_utc(now_ms / 1000 - _SEEN_LATELY_SECONDS))

    def count_completed(self, minutes: int = 60) -> list[int]:
        now_ms = self._server_clock.read_wall_ms()
        since_ms = now_ms - minutes * 60_000
        first_hour = f"completed/{to_utc(since_ms / 1000):%Y-%m-%dT%H}"
        counts = [0] * minutes
        with self._directory.translate_errors():
            for _, match in layout.list_tasks(
                self._directory, MessageState.COMPLETED, first_hour
            ):
                done_ms = int(match["done_ms"])
                if since_ms <= done_ms < now_ms:
                    counts[(done_ms - since_ms) // 60_000] += 1
        return counts

    def find(self, message_id: str) -> list[MessageInfo]:
        with self._directory.translate_errors():
            return [info for _, info in self._find(message_id, MessageState)]

    def _find(
        self, message_id: str, states: Iterable[MessageState]
    ) -> Iterator[tuple[str, MessageInfo]]:
        """Find all messages of an id or key, with history, checkpoint and path."""
        id_hash = layout.hash_id(message_id)
        for state in states:
            for path, match in layout.list_tasks(self._directory, state):
                if layout.has_hash(match["key"], id_hash) or match["key"] == message_id:
                    info = self._read_info(state, path, match, deep=True)
                    if info and message_id in (info.id, info.key):
                        yield path, info

    def _read_info(
        self, state: MessageState, path: str, match: re.Match[str], *, deep: bool
    ) -> MessageInfo | None:
        task = layout.parse_task(match)
        body = self._directory.read_json(path)
        if body is None and not self._directory.exists(path):
            return None  # it moved while it was inspected
        message_id = (body or {}).get("id")
        return MessageInfo(
            id=message_id if isinstance(message_id, str) and message_id else task.key,
            key=task.key,
            state=state,
            attempts=task.attempts,
            fence=task.fence,
            where=str(self._directory.folder / path),
            due_at=self._read_due_at(path, match) if state is MessageState.PENDING else None,
            holder=self._read_holder(path, match) if state is MessageState.LEASED else None,
            reason=self._read_reason(task) if state is MessageState.FAILED else None,
            past=self._notes.read_attempts(task.key) if deep else (),
            checkpoint=self._read_checkpoint(task) if deep else None,
            body=body,
        )

    def _read_due_at(self, path: str, match: re.Match[str]) -> datetime:
        return to_utc(_parse_due_ms(path, match, self._server_clock.read_wall_ms()) / 1000)

    def _read_reason(self, task: TaskName) -> str:
        if (data := self._directory.read_json(task.reason_path)) is None:
            return "unknown: its reason file is missing or cannot be read"
        reason = data.get("reason")
        return reason if isinstance(reason, str) else "unknown: its reason file holds no text"

    def _read_checkpoint(self, task: TaskName) -> Any:
        """Return the newest checkpoint, or None if it is nested too deeply to be shown."""
        checkpoint = self._notes.load_checkpoint_before(task._replace(fence=task.fence + 1))
        return None if is_deep([checkpoint]) else checkpoint

    def _read_holder(self, path: str, match: re.Match[str]) -> Holder:
        beat = layout.BEAT.fullmatch(self._directory.read_beat(path))
        if beat and int(beat["fence"]) != layout.parse_task(match).fence:
            beat = None  # of an earlier claim
        token = match["worker"]
        card = self._workers.get_card(token)
        return Holder(
            worker_id=self._workers.get_worker_id(token),
            timestamp=to_utc(int(match["claimed_ms"]) / 1000),
            attempt=layout.parse_task(match).attempts,
            expires_at=to_utc(layout.parse_deadline_ms(match) / 1000),
            host=card.host if card else "",
            pid=card.pid if card else 0,
            last_seen=self._workers.read_last_seen(token),
            lease_seconds=int(match["lease_ms"]) / 1000,
            beat_at=to_utc(int(beat["beat_ms"]) / 1000) if beat else None,
            progress=float(beat["progress"]) if beat and beat["progress"] else None,
        )

    # -- changing

    def cancel(self, message_id: str) -> int:
        """Cancel a message. One that moves while it is searched for is searched for again."""
        cancelled = 0
        with self._directory.translate_errors():
            for _ in range(LISTING_PASSES):
                results = [
                    self._dead_letters.cancel(path, info)
                    for path, info in self._find(message_id, _LIVE)
                ]
                cancelled += sum(results)
                if results and all(results):
                    break
        return cancelled

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = ignore_progress
    ) -> int:
        letters = self._dead_letters
        with self._directory.translate_errors():
            return letters.redrive(list(letters.find(message_id)), on_progress)

    def redrive_many(self, messages: Sequence[MessageInfo]) -> int:
        with self._directory.translate_errors():
            return self._dead_letters.redrive(map(layout.to_task, messages), ignore_progress)

    def drop(self, message_id: str) -> int:
        with self._directory.translate_errors():
            tasks = list(self._dead_letters.find(message_id))
            return sum(self._dead_letters.drop(task, message_id) for task in tasks)

    def drop_many(self, messages: Sequence[MessageInfo]) -> int:
        with self._directory.translate_errors():
            return sum(self._dead_letters.drop(layout.to_task(m), m.id) for m in messages)

    def purge(self, older_than_seconds: float) -> int:
        with self._directory.translate_errors():
            purged = self._housekeeping.purge(older_than_seconds)
            self._housekeeping.sweep()
        return purged

    def sweep(self, older_than_seconds: float = SWEEP_SECONDS) -> int:
        """Remove leftovers of crashed processes; return how many files were removed."""
        with self._directory.translate_errors():
            return self._housekeeping.sweep(older_than_seconds)


def _parse_due_ms(path: str, pending: re.Match[str], now_ms: int) -> int:
    """Return when a task is due, which is now if it was due under a clock that was ahead."""
    due_ms = int(pending["due_ms"])
    is_due = due_ms > now_ms and layout.is_due_when_pushed(path.split("/")[1])
    return now_ms if is_due else due_ms
