"""What became of the attempts that did not succeed: one line each, for `explain`."""

import json
from datetime import UTC, datetime

from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.names import TaskName
from holdfast.core.queue.manager import PastAttempt

_DETAIL_LIMIT = 8000  # characters of a traceback: enough to act on, no more


class AttemptHistory:
    """Informational only: nothing is ever decided by it, so a lost line costs nothing."""

    def __init__(self, tree: QueueDirectory) -> None:
        self._tree = tree

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
        line = {
            "attempt": task.attempts,
            "outcome": outcome,
            "at": at.isoformat(),
            "worker_id": worker_id,
            "reason": reason[:2000],
            "detail": detail[-_DETAIL_LIMIT:] if detail else None,
        }
        self._tree.refuse_links("history")
        self._tree.append(f"history/{task.key}.jsonl", json.dumps(line).encode() + b"\n")

    def of(self, key: str) -> list[PastAttempt]:
        try:
            lines = self._tree.read(f"history/{key}.jsonl", 1 << 24).splitlines()
        except (FileNotFoundError, PermissionError, ValueError):
            return []
        return [past for line in lines if (past := _parse(line)) is not None]

    def forget(self, key: str) -> None:
        self._tree.remove(f"history/{key}.jsonl")


def _parse(line: bytes) -> PastAttempt | None:
    try:
        data = json.loads(line)
        at = datetime.fromisoformat(data["at"])
        past = PastAttempt(**{**data, "at": at if at.tzinfo else at.replace(tzinfo=UTC)})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # a line that a full disk cut short, or not ours
    return past if _is_sound(past) else None


def _is_sound(past: PastAttempt) -> bool:
    texts = (past.outcome, past.worker_id, past.reason, past.detail or "")
    return isinstance(past.attempt, int) and all(isinstance(text, str) for text in texts)
