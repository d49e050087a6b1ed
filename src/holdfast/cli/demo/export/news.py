"""What the services report of themselves, and the turns of the story that follow from it."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.cli.demo.crew import WorkerHandle


class ExportEventFeed:
    """Hears events, in a thread of each service."""

    def __init__(self, tell: Callable[[str], None], names: Mapping[str, str]) -> None:
        self._tell, self._names = tell, names
        self._workers: defaultdict[int, list[int]] = defaultdict(list)

    def workers_of(self, hand: WorkerHandle) -> list[int]:
        """The ids of its pool workers, as far as they are known to live."""
        return list(self._workers[hand.number]) if hand.alive else []

    def __call__(self, hand: WorkerHandle, event: dict[str, Any]) -> None:
        by = f"service {hand.number}"
        match event:
            case {"event": "pool_worker_started", "pid": pid}:
                self._workers[hand.number].append(pid)
            case {"event": "pool_worker_ended", "pid": pid, "reason": reason}:
                self._workers[hand.number].remove(pid)
                self._tell(f"{by}: pool worker {pid} ended, {reason}: another is started")
            case {"event": "task_again", "task_id": task, "attempt": attempt}:
                self._tell(f"{by}: {self._name(task)} is done again, attempt {attempt}")
            case {"event": "job_started"}:
                self._tell(f"{by}: has the job")
            case {"event": "task_failed", "task_id": task, "code": code}:
                self._tell(f"{by}: {self._name(task)} failed for good: {code}")
            case {"event": "job_finished", "status": status, "code": code}:
                self._tell(f"{by}: the job is {status}: {code}")
            case {"event": "lease_gone" | "retried" | "dead_lettered", "reason": reason}:
                self._tell(f"{by}: the job's message is {event['event']}: {reason}")

    def _name(self, task_id: str) -> str:
        return self._names.get(task_id, task_id)
