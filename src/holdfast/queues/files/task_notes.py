"""What is kept beside a task: the history of its attempts, and what they saved.

    history/<key>.jsonl             one line for each attempt that did not succeed
    checkpoints/<key>/<fence>.json  what an attempt saved for the next one

Each attempt writes a checkpoint of its own, so a stale holder can never overwrite that of its
successor. A reader takes the newest one before its own. Each task has a folder of its own, so
the time to find its checkpoints depends only on how many it has, and not on how often it was
claimed or on the checkpoints of other tasks.
"""

import json
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import MalformedMessage, MessageTooLarge
from holdfast.queue.manager import PastAttempt
from holdfast.queue.message import MAX_BYTES
from holdfast.queues.files import layout
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.layout import TaskName

_MAX_DETAIL = 8000  # characters of a traceback, enough to act on


class AttemptHistory:
    """The history of all tasks. No decision depends on it, so a lost line does no harm."""

    def __init__(self, directory: QueueDirectory) -> None:
        self._directory = directory

    def add(
        self,
        task: TaskName,
        outcome: str,
        *,
        at: datetime,
        worker_id: str,
        reason: str,
        detail: str | None = None,
    ) -> None:
        """Add a line about one attempt."""
        line = {
            "attempt": task.attempts,
            "outcome": outcome,
            "at": at.isoformat(),
            "worker_id": worker_id,
            "reason": reason[:2000],
            "detail": detail[-_MAX_DETAIL:] if detail else None,
        }
        self._directory.refuse_links("history")
        self._directory.append(f"history/{task.key}.jsonl", json.dumps(line).encode() + b"\n")

    def read(self, key: str) -> list[PastAttempt]:
        """Return the readable lines of a task, oldest first."""
        try:
            lines = self._directory.read(f"history/{key}.jsonl", 1 << 24).splitlines()
        except (FileNotFoundError, PermissionError, ValueError):
            return []
        return [past for line in lines if (past := _parse(line)) is not None]

    def forget(self, key: str) -> None:
        """Remove the history of a task."""
        self._directory.remove(f"history/{key}.jsonl")


def _parse(line: bytes) -> PastAttempt | None:
    try:
        data = json.loads(line)
        at = datetime.fromisoformat(data["at"])
        past = PastAttempt(**{**data, "at": at if at.tzinfo else at.replace(tzinfo=UTC)})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # a line that a full disk cut short, or that no queue wrote
    return past if _is_sound(past) else None


def _is_sound(past: PastAttempt) -> bool:
    texts = (past.outcome, past.worker_id, past.reason, past.detail or "")
    return isinstance(past.attempt, int) and all(isinstance(text, str) for text in texts)


class Checkpoints:
    """The checkpoints of all tasks of a queue."""

    def __init__(self, directory: QueueDirectory) -> None:
        self._directory = directory

    def save(self, task: TaskName, value: Any) -> None:
        """Save the checkpoint of an attempt, and replace its earlier one.

        Raises MalformedMessage if `value` is not plain JSON data, and MessageTooLarge.
        """
        try:
            body = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(f"a checkpoint must be plain JSON data: {error}") from None
        if len(body) > MAX_BYTES:
            raise MessageTooLarge(
                f"the checkpoint is {len(body):,} bytes, the limit is {MAX_BYTES:,}: store it "
                "elsewhere and save its address"
            )
        folder = _format_folder(task.key)
        for path in ("checkpoints", folder):
            self._directory.make_folder(path)
        self._directory.put(f"{folder}/{task.fence}.json", body)
        if self._directory.durable:
            self._directory.sync(folder)

    def load_newest_before(self, task: TaskName) -> Any:
        """Return the newest readable checkpoint of an earlier attempt, or None."""
        for fence in reversed(self._list_fences(task.key)):
            if fence >= task.fence:
                continue
            try:
                body = self._directory.read(
                    f"{_format_folder(task.key)}/{fence}.json", 2 * MAX_BYTES
                )
                return json.loads(body)
            except (FileNotFoundError, PermissionError, ValueError, RecursionError):
                continue  # missing or unreadable: an older one may be usable
        return None

    def forget(self, key: str) -> None:
        """Remove all checkpoints of a finished task."""
        folder = _format_folder(key)
        for name in filter(layout.CHECKPOINT.fullmatch, self._directory.list_readable(folder)):
            self._directory.remove(f"{folder}/{name}")
        self._directory.remove_folder(folder)

    def list_keys(self) -> set[str]:
        """List the keys of all tasks that have checkpoints."""
        return set(self._directory.list("checkpoints"))

    def _list_fences(self, key: str) -> list[int]:
        matches = map(
            layout.CHECKPOINT.fullmatch, self._directory.list_readable(_format_folder(key))
        )
        return sorted(int(match["fence"]) for match in matches if match)


def _format_folder(key: str) -> str:
    return f"checkpoints/{key}"
