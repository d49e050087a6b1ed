"""Report the events in the logs of the services."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.cli.demo.processes import DemoProcess


class ExportEventFeed:
    """Handles events, in one thread per service."""

    def __init__(self, report: Callable[[str], None], names: Mapping[str, str]) -> None:
        self._report, self._names = report, names
        self._workers: defaultdict[int, list[int]] = defaultdict(list)

    def list_workers(self, service: DemoProcess) -> list[int]:
        """Return the ids of a service's pool workers that are known to be running."""
        return list(self._workers[service.number]) if service.is_alive else []

    def __call__(self, service: DemoProcess, event: dict[str, Any]) -> None:
        by = f"service {service.number}"
        match event:
            case {"event": "pool_worker_started", "pid": pid}:
                self._workers[service.number].append(pid)
            case {"event": "pool_worker_ended", "pid": pid, "reason": reason}:
                self._workers[service.number].remove(pid)
                self._report(f"{by}: pool worker {pid} ended, {reason}: another one starts")
            case {"event": "task_retried", "task_id": task, "attempt": attempt}:
                self._report(f"{by}: {self._find_name(task)} is retried, attempt {attempt}")
            case {"event": "job_started"}:
                self._report(f"{by}: has the job")
            case {"event": "task_failed", "task_id": task, "code": code}:
                self._report(f"{by}: {self._find_name(task)} failed permanently: {code}")
            case {"event": "job_finished", "status": status, "code": code}:
                self._report(f"{by}: the job is {status}: {code}")
            case {
                "event": "message_lease_lost" | "retried" | "dead_lettered",
                "reason": reason,
            }:
                self._report(f"{by}: the job's message is {event['event']}: {reason}")

    def _find_name(self, task_id: str) -> str:
        return self._names.get(task_id, task_id)
