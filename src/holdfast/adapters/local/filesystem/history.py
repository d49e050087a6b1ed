"""What became of the attempts that did not succeed: one line each, for `explain`."""

import json
from datetime import datetime

from holdfast.adapters.local.filesystem.names import Task
from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.core.queue import PastAttempt

_DETAIL_LIMIT = 8000  # characters of a traceback: enough to act on, no more


class History:
    """Informational only: nothing is ever decided by it, so a lost line costs nothing."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def add(
        self,
        task: Task,
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
        self._tree.append(f"history/{task.key}.jsonl", json.dumps(line).encode() + b"\n")

    def of(self, key: str) -> list[PastAttempt]:
        try:
            lines = self._tree.read(f"history/{key}.jsonl", 1 << 24).splitlines()
        except (FileNotFoundError, ValueError):
            return []
        return [past for line in lines if (past := _parse(line)) is not None]

    def forget(self, key: str) -> None:
        self._tree.remove(f"history/{key}.jsonl")


def _parse(line: bytes) -> PastAttempt | None:
    try:
        data = json.loads(line)
        return PastAttempt(**{**data, "at": datetime.fromisoformat(data["at"])})
    except (ValueError, TypeError, KeyError):
        return None  # a line that a full disk cut short
