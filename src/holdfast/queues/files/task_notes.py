"""What is kept beside a task: the history of its attempts, and what they saved.

    history/<key>.jsonl             one line for each attempt that did not succeed
    checkpoints/<key>/<fence>.json  what an attempt saved for the next one

Each attempt writes a checkpoint of its own, so a stale holder can never overwrite that of its
successor. A reader takes the newest one before its own. Each task has a folder of its own, so
the time to find its checkpoints depends only on how many it has, and not on how often it was
claimed or on the checkpoints of other tasks.
"""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from holdfast.lease.clock import to_utc
from holdfast.queue.info import PastAttempt
from holdfast.queue.message import MAX_BYTES
from holdfast.queues.files import layout
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName
from holdfast.queues.files.workers import ServerClock

_MAX_DETAIL = 8000  # characters of a traceback, enough to act on


class TaskNotes:
    """The history and the checkpoints of all tasks of a queue."""

    def __init__(self, directory: QueueDirectory, server_clock: ServerClock) -> None:
        self._directory, self._server_clock = directory, server_clock

    # -- the history: no decision depends on it, so a lost line does no harm

    def add_attempt(
        self,
        task: TaskName,
        outcome: str,
        worker_id: str,
        reason: str,
        detail: str | None = None,
    ) -> None:
        """Add a line about one attempt, if possible.

        It is only for operators, so a full disk must not undo what happened to the task.
        """
        line = {
            "attempt": task.attempts,
            "outcome": outcome,
            "at": to_utc(self._server_clock.read_wall_ms() / 1000).isoformat(),
            "worker_id": worker_id,
            "reason": reason[:2000],
            "detail": detail[-_MAX_DETAIL:] if detail else None,
        }
        path = f"history/{task.key}.jsonl"
        with suppress(OSError):
            self._directory.refuse_links("history")
            self._directory.append(path, json.dumps(line).encode() + b"\n")

    def read_attempts(self, key: str) -> tuple[PastAttempt, ...]:
        """Return the readable lines of a task, oldest first."""
        try:
            lines = self._directory.read(f"history/{key}.jsonl", 1 << 24).splitlines()
        except (FileNotFoundError, PermissionError, ValueError):
            return ()
        return tuple(past for line in lines if (past := _parse(line)) is not None)

    def forget_attempts(self, key: str) -> None:
        """Remove the history of a task."""
        self._directory.remove(f"history/{key}.jsonl")

    # -- checkpoints

    def save_checkpoint(self, task: TaskName, body: bytes) -> None:
        """Save the checkpoint of an attempt, and replace its earlier one."""
        folder = f"checkpoints/{task.key}"
        for path in ("checkpoints", folder):
            self._directory.make_folder(path)
        self._directory.put(f"{folder}/{task.fence}.json", body)
        if self._directory.durable:
            self._directory.sync(folder)

    def load_checkpoint_before(self, task: TaskName) -> Any:
        """Return the newest readable checkpoint of an earlier attempt, or None."""
        folder = f"checkpoints/{task.key}"
        matches = map(layout.CHECKPOINT.fullmatch, self._directory.list_readable(folder))
        fences = sorted(int(match["fence"]) for match in matches if match)
        for fence in reversed(fences):
            if fence >= task.fence:
                continue
            try:
                return json.loads(self._directory.read(f"{folder}/{fence}.json", 2 * MAX_BYTES))
            except (FileNotFoundError, PermissionError, ValueError, RecursionError):
                continue  # missing or unreadable: an older one may be usable
        return None

    def forget_checkpoints(self, key: str) -> None:
        """Remove all checkpoints of a finished task."""
        folder = f"checkpoints/{key}"
        for name in filter(layout.CHECKPOINT.fullmatch, self._directory.list_readable(folder)):
            self._directory.remove(f"{folder}/{name}")
        self._directory.remove_folder(folder)

    def list_checkpointed(self) -> set[str]:
        """List the keys of all tasks that have checkpoints."""
        return set(self._directory.list("checkpoints"))


def _parse(line: bytes) -> PastAttempt | None:
    try:
        data = json.loads(line)
        at = datetime.fromisoformat(data["at"])
        past = PastAttempt(**{**data, "at": at if at.tzinfo else at.replace(tzinfo=UTC)})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # a line that a full disk cut short, or that no queue wrote
    texts = (past.outcome, past.worker_id, past.reason, past.detail or "")
    is_sound = isinstance(past.attempt, int) and all(isinstance(text, str) for text in texts)
    return past if is_sound else None
