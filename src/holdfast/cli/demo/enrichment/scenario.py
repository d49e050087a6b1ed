"""The course of the queue scenario.

push ─▶ workers start ─▶ a handler hangs ─▶ the watchdog ends it
                      └▶ a worker is killed ─▶ its leases end ─▶ others take over
                                              all settled ─▶ workers drain ─▶ report
"""

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.bootstrap import open_queue
from holdfast.cli.demo.act import ALL, Act
from holdfast.cli.demo.effect_log import EffectLog
from holdfast.cli.demo.enrichment.accounting import Attempt, make_report
from holdfast.cli.demo.enrichment.tasks import (
    EFFECTS_VARIABLE,
    HANGING_TASK,
    DemoTask,
    make_tasks,
)
from holdfast.cli.demo.processes import DemoProcess
from holdfast.cli.demo.screen import DemoReport, DemoScreen, render_processes
from holdfast.cli.live_view import draw_shares, list_states
from holdfast.core.queue.manager import MessageInfo, MessageState

if TYPE_CHECKING:
    from rich.console import RenderableType

LEASE_SECONDS = 4.0
STALL_SECONDS = 2.0
CONCURRENCY = 2
_KILL_AFTER = 0.25  # the share of completed tasks


class EnrichmentAct(Act):
    """One run of the scenario in one folder."""

    timeout_seconds = 150.0
    story: ClassVar = {
        "child_killed": "the watchdog ended the handler of {message_id}: {reason}",
        "dead_lettered": "{message_id} is dead-lettered: {reason}",
        "retried": "{message_id} will be retried: {reason}",
        "message_lease_lost": "lost the lease of {message_id}: {reason}",
    }

    def __init__(self, folder: Path, screen: DemoScreen, tasks: int, workers: int) -> None:
        effects = folder / "effects.jsonl"
        super().__init__(folder, screen, {EFFECTS_VARIABLE: str(effects)})
        self._tasks, self._workers, self._effects = tasks, workers, EffectLog(effects)
        self._url = str(folder / "demo" / "enrich")
        self._queue = open_queue(self._url, DemoTask, env={})
        self._victim: DemoProcess | None = None

    def run(self) -> DemoReport:
        """Run the scenario and return its report."""
        with self._queue, self.screen:
            pushed = self._queue.push_many(make_tasks(self._tasks))
            self.screen.report(f"pushed {len(pushed)} enrichment tasks")
            self.run_processes()
            return make_report(
                pushed,
                self._list_settled(MessageState.COMPLETED),
                self._list_settled(MessageState.FAILED),
                [Attempt(line["id"], line["attempt"]) for line in self._effects.read()],
            )

    def _list_settled(self, state: MessageState) -> list[Attempt]:
        return [Attempt(task.id, task.attempts) for task in self._queue.peek(state, ALL)]

    def run_steps(self) -> None:
        """Start the workers, kill one of them, and wait until every task is settled."""
        for _ in range(self._workers):
            self.processes.start(self._make_arguments())
        self.screen.report(f"starting {self._workers} worker processes")
        self.wait_until(lambda: self._is_settled() or self._kill_one())
        if (victim := self._victim) is not None:
            self.wait_until(lambda: not self._find_held_by(victim))
            self.screen.report(
                f"other workers have taken over its tasks, {self.seconds_since_kill:.1f} s "
                f"after the kill (lease {LEASE_SECONDS:.0f} s, polled twice a second)"
            )
        self.wait_until(self._is_settled)
        self.screen.report("every task is settled; the workers drain")

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

    def _is_settled(self) -> bool:
        stats = self._queue.stats()
        return (stats.completed or 0) + stats.failed >= self._tasks

    def _kill_one(self) -> bool:
        """Kill the first worker that holds tasks, except the one whose handler hangs.

        The watchdog of that worker ends the hung handler. Returns whether one was killed.
        """
        if (self._queue.stats().completed or 0) < self._tasks * _KILL_AFTER:
            return False
        for worker in self.processes.started:
            held = self._find_held_by(worker)
            if held and not any(_is_hanging(task) for task in held):
                # A stopped process settles nothing, so it dies with exactly what it holds now.
                worker.send_signal(signal.SIGSTOP)
                if orphans := self._find_held_by(worker):
                    self._victim = worker
                    self.kill(worker, partial(_describe_orphans, orphans))
                    return True
                worker.send_signal(signal.SIGCONT)
        return False

    def _find_held_by(self, worker: DemoProcess) -> list[MessageInfo]:
        leased = self._queue.peek(MessageState.LEASED, ALL)
        return [task for task in leased if task.holder and task.holder.pid == worker.pid]

    def describe_event(self, process: DemoProcess, event: dict[str, Any]) -> str | None:
        """Tell also who claims the task whose handler hangs."""
        match event:
            case {"event": "claimed", "message_id": task, "attempt": 1} if task == HANGING_TASK:
                return f"claims {task}, whose handler will hang"
        return super().describe_event(process, event)

    # -- the view

    def format_line(self) -> str:
        """Return the counts as one line."""
        stats = self._queue.stats()
        return (
            f"{stats.completed} completed, {stats.leased} leased, "
            f"{stats.ready + stats.delayed} waiting, {stats.failed} dead"
        )

    def render(self) -> "Sequence[RenderableType]":
        """Return the bar, the counts and a table of the workers."""
        workers = render_processes(
            "worker",
            self.processes.started,
            done=lambda worker: str(worker.counts["completed"]),
        )
        return [*draw_shares(list_states(self._queue.stats())), "", workers]


def _describe_orphans(orphans: list[MessageInfo]) -> str:
    return f"holding {', '.join(task.id for task in orphans)}"


def _is_hanging(task: MessageInfo) -> bool:
    return task.id == HANGING_TASK and task.attempts == 1
