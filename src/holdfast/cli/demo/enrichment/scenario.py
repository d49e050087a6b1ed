"""The course of the queue scenario.

push ─▶ workers start ─▶ a handler hangs ─▶ the watchdog ends it
                      └▶ a worker is killed ─▶ its leases end ─▶ others take over
                                              all settled ─▶ workers drain ─▶ report
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.bootstrap import open_queue
from holdfast.cli.demo.enrichment.accounting import (
    EnrichmentReport,
    SettledTask,
    make_report,
    read_effects,
)
from holdfast.cli.demo.enrichment.tasks import (
    EFFECTS_VARIABLE,
    HANGING_TASK,
    DemoTask,
    make_tasks,
)
from holdfast.cli.demo.enrichment.view import EnrichmentView
from holdfast.cli.demo.processes import DemoProcess, DemoProcesses
from holdfast.cli.demo.screen import DemoScreen
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.queue.manager import MessageInfo, MessageState, QueueStats

LEASE_SECONDS = 4.0
STALL_SECONDS = 2.0
CONCURRENCY = 2
_POLL_SECONDS = 0.1
_KILL_AFTER = 0.25  # the share of completed tasks
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class EnrichmentScenarioSettings:
    """The size of the scenario, and its timeout."""

    tasks: int = 300
    workers: int = 4
    timeout_seconds: float = 150.0


class EnrichmentScenario:
    """One run of the scenario in one folder."""

    def __init__(
        self, settings: EnrichmentScenarioSettings, folder: Path, screen: DemoScreen
    ) -> None:
        self._settings, self._folder, self._screen = settings, folder, screen
        self._url = str(folder / "demo" / "enrich")
        self._queue = open_queue(self._url, DemoTask, env={})
        self._effects_path = folder / "effects.jsonl"
        self._victim: DemoProcess | None = None
        self._killed_at = 0.0
        self._orphans = 0

    def run(self) -> EnrichmentReport:
        """Run the scenario and return its report."""
        with self._queue, self._screen:
            pushed = self._queue.push_many(make_tasks(self._settings.tasks))
            self._screen.report(f"pushed {len(pushed)} enrichment tasks")
            with self._make_processes() as processes:
                for _ in range(self._settings.workers):
                    processes.start(self._make_arguments())
                self._screen.report(f"starting {len(processes.processes)} worker processes")
                self._watch(processes)
            self._screen.draw(EnrichmentView(self._queue.stats(), processes.processes))
            return self._make_report(pushed)

    def _make_processes(self) -> DemoProcesses:
        return DemoProcesses(
            self._folder, {EFFECTS_VARIABLE: str(self._effects_path)}, self._handle_event
        )

    def _make_arguments(self) -> list[str]:
        return [
            "work",
            self._url,
            "holdfast.cli.demo.enrichment.tasks:enrich",
            "--isolation=process",
            f"--concurrency={CONCURRENCY}",
            f"--lease={LEASE_SECONDS}",
            f"--stall={STALL_SECONDS}",
            "--max-attempts=8",
            "--drain=5",
            "--log-format=json",
        ]

    # -- the interventions

    def _watch(self, processes: DemoProcesses) -> None:
        """Watch until every task is settled, no worker is left, or the time is over."""
        deadline = SYSTEM_CLOCK.monotonic() + self._settings.timeout_seconds
        while True:
            stats = self._queue.stats()
            self._screen.draw(EnrichmentView(stats, processes.processes))
            if (stats.completed or 0) + stats.failed >= self._settings.tasks:
                self._screen.report("every task is settled; the workers drain")
                return
            if not any(worker.is_alive for worker in processes.processes):
                self._screen.report(f"no worker is left: {processes.last_output}")
                return
            if SYSTEM_CLOCK.monotonic() > deadline:
                self._screen.report("timeout; stopping the demo")
                return
            self._intervene(stats, processes.processes)
            SYSTEM_CLOCK.sleep(_POLL_SECONDS)

    def _intervene(self, stats: QueueStats, workers: Sequence[DemoProcess]) -> None:
        if self._victim is None:
            if (stats.completed or 0) >= self._settings.tasks * _KILL_AFTER:
                self._kill_one(workers)
        elif self._orphans and not self._find_held_by(self._victim):
            self._orphans = 0
            after = SYSTEM_CLOCK.monotonic() - self._killed_at
            self._screen.report(
                f"other workers have taken over its tasks, {after:.1f} s after the kill "
                f"(lease {LEASE_SECONDS:.0f} s, polled twice a second)"
            )

    def _kill_one(self, workers: Sequence[DemoProcess]) -> None:
        """Kill the first worker that holds tasks, except the one whose handler hangs.

        The watchdog of that worker ends the hung handler.
        """
        for worker in workers:
            held = self._find_held_by(worker)
            if held and not any(_is_hanging(task) for task in held):
                # A stopped process settles nothing, so it dies with exactly what it holds now.
                worker.send_signal(signal.SIGSTOP)
                if orphans := self._find_held_by(worker):
                    self._kill(worker, orphans)
                    return
                worker.send_signal(signal.SIGCONT)

    def _kill(self, worker: DemoProcess, orphans: Sequence[MessageInfo]) -> None:
        worker.kill()
        self._victim, self._orphans = worker, len(orphans)
        self._killed_at = SYSTEM_CLOCK.monotonic()
        ids = ", ".join(task.id for task in orphans)
        worker.outcome = f"killed with SIGKILL, holding {ids}"
        self._screen.report(f"worker {worker.number} (pid {worker.pid}) is {worker.outcome}")

    def _find_held_by(self, worker: DemoProcess) -> list[MessageInfo]:
        leased = self._queue.peek(MessageState.LEASED, _ALL)
        return [task for task in leased if task.holder and task.holder.pid == worker.pid]

    def _handle_event(self, worker: DemoProcess, event: dict[str, Any]) -> None:
        """Report events that only the workers know."""
        by = f"worker {worker.number}"
        match event:
            case {"event": "claimed", "message_id": task, "attempt": 1} if task == HANGING_TASK:
                self._screen.report(f"{by}: claims {task}, whose handler will hang")
            case {"event": "child_killed", "message_id": task, "reason": reason}:
                self._screen.report(f"{by}: the watchdog ended the handler of {task}: {reason}")
            case {"event": "dead_lettered", "message_id": task, "reason": reason}:
                self._screen.report(f"{by}: {task} is dead-lettered: {reason}")
            case {"event": "retried", "message_id": task, "reason": reason}:
                self._screen.report(f"{by}: {task} will be retried: {reason}")
            case {"event": "message_lease_lost", "message_id": task, "reason": reason}:
                self._screen.report(f"{by}: lost the lease of {task}: {reason}")

    # -- the report

    def _make_report(self, pushed: list[str]) -> EnrichmentReport:
        return make_report(
            pushed,
            self._list_settled(MessageState.COMPLETED),
            self._list_settled(MessageState.FAILED),
            read_effects(self._effects_path),
        )

    def _list_settled(self, state: MessageState) -> list[SettledTask]:
        return [SettledTask(task.id, task.attempts) for task in self._queue.peek(state, _ALL)]


def _is_hanging(task: MessageInfo) -> bool:
    return task.id == HANGING_TASK and task.attempts == 1
