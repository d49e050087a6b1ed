"""The history of attempts that did not succeed: one line each, for `explain`."""

import json
from datetime import UTC, datetime

from holdfast.queue.manager import PastAttempt
from holdfast.queues.files.directory import QueueDirectory
from holdfast.queues.files.names import TaskName

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

    def read(self, key: str) -> tuple[PastAttempt, ...]:
        """Return the readable lines of a task, oldest first."""
        try:
            lines = self._directory.read(f"history/{key}.jsonl", 1 << 24).splitlines()
        except (FileNotFoundError, PermissionError, ValueError):
            return ()
        return tuple(past for line in lines if (past := _parse(line)) is not None)

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
