"""The queue act: a worker is killed, and a handler hangs.

push ─▶ workers start ─▶ a handler hangs ─▶ the watchdog ends it
                      └▶ a worker is killed ─▶ its leases end ─▶ others take over
                                              all settled ─▶ workers drain ─▶ report
"""

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from rich.console import RenderableType

from holdfast.cli.live_view import draw_shares, list_states
from holdfast.demo.act import ALL, Act
from holdfast.demo.process import DemoProcess
from holdfast.demo.queue_tasks import HANGING_TASK, DemoTask, make_tasks
from holdfast.demo.screen import DemoReport, ReportRow
from holdfast.queue.manager import MessageInfo, MessageState

LEASE_SECONDS = 4.0
_KILL_AFTER = 0.25  # the share of completed tasks
_TERMS = (
    "An effect counts if the queue completed the attempt that made it. Effects of killed or "
    "overtaken attempts are fenced off. Done twice means two effects that count."
)


class QueueAct(Act):
    """Enrichment tasks, and several workers."""

    title = "{tasks} tasks, a killed worker, a hung handler"
    inspect = "holdfast status {url} (and list, explain, dead)"
    queue_name = "demo/enrich"
    message = DemoTask
    command = (
        "holdfast.cli work {url} holdfast.demo.queue_tasks:enrich --isolation=process "
        f"--concurrency=2 --lease={LEASE_SECONDS} --stall=2 --max-attempts=8 --drain=5 "
        "--log-format=json"
    )
    timeout_seconds = 150.0
    story: ClassVar = {
        "child_killed": "the watchdog ended the handler of {message_id}: {reason}",
        "dead_lettered": "{message_id} is dead-lettered: {reason}",
        "retried": "{message_id} will be retried: {reason}",
        "message_lease_lost": "lost the lease of {message_id}: {reason}",
    }
    columns = MappingProxyType({"done": lambda worker: str(worker.counts["completed"])})
    _pushed: Sequence[str] = ()
    _victim: DemoProcess | None = None

    def run_steps(self) -> None:
        """Start the workers, kill one of them, and wait until every task is settled."""
        self._pushed = self.queue.push_many(make_tasks(self.sizes.tasks))
        self.screen.report(f"pushed {len(self._pushed)} enrichment tasks")
        for _ in range(self.sizes.workers):
            self.start(reported=False)
        self.screen.report(f"starting {self.sizes.workers} worker processes")
        self.wait_until(lambda: self._is_settled() or self._kill_one())
        if (victim := self._victim) is not None:
            self.wait_until(lambda: not self._find_held_by(victim))
            self.screen.report(
                f"other workers have taken over its tasks, {self.seconds_since_kill:.1f} s "
                f"after the kill (lease {LEASE_SECONDS:.0f} s, polled twice a second)"
            )
        self.wait_until(self._is_settled)
        self.screen.report("every task is settled; the workers drain")

    def _is_settled(self) -> bool:
        stats = self.queue.stats()
        return (stats.completed or 0) + stats.failed >= self.sizes.tasks

    def _kill_one(self) -> bool:
        """Kill the first worker that holds tasks, except the one whose handler hangs.

        The watchdog of that worker ends the hung handler. Returns whether one was killed.
        """
        if (self.queue.stats().completed or 0) < self.sizes.tasks * _KILL_AFTER:
            return False
        for worker in self.started:
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
        leased = self.queue.peek(MessageState.LEASED, ALL)
        return [task for task in leased if task.holder and task.holder.pid == worker.pid]

    def describe_event(self, process: DemoProcess, event: dict[str, Any]) -> str | None:
        """Tell also who claims the task whose handler hangs."""
        match event:
            case {"event": "claimed", "message_id": task, "attempt": 1} if task == HANGING_TASK:
                return f"claims {task}, whose handler will hang"
        return super().describe_event(process, event)

    def format_line(self) -> str:
        """Return the counts as one line."""
        stats = self.queue.stats()
        return (
            f"{stats.completed} completed, {stats.leased} leased, "
            f"{stats.ready + stats.delayed} waiting, {stats.failed} dead"
        )

    def render(self) -> Sequence[RenderableType]:
        """Return the bar and the counts."""
        return draw_shares(list_states(self.queue.stats()))

    def make_report(self) -> DemoReport:
        """Compare the pushed tasks with what the queue and the effect log show of them."""
        completed, dead = (
            [Attempt(task.id, task.attempts) for task in self.queue.peek(state, ALL)]
            for state in (MessageState.COMPLETED, MessageState.FAILED)
        )
        effects = [Attempt(line["id"], line["attempt"]) for line in self.effects.read()]
        return make_report(self._pushed, completed, dead, effects)


def _describe_orphans(orphans: list[MessageInfo]) -> str:
    return f"holding {', '.join(task.id for task in orphans)}"


def _is_hanging(task: MessageInfo) -> bool:
    return task.id == HANGING_TASK and task.attempts == 1


# -- the report


class Attempt(NamedTuple):
    """An attempt of a task that settled it, or that made an effect."""

    id: str
    attempt: int


def make_report(
    pushed: Iterable[str],
    completed: list[Attempt],
    dead: list[Attempt],
    effects: list[Attempt],
) -> DemoReport:
    """Return the report.

    A task is lost if it is not settled, or completed without an effect that counts.
    """
    accepted = set(completed)
    counted = Counter(effect.id for effect in effects if effect in accepted)
    settled = Counter(task.id for task in [*completed, *dead])
    pushed = set(pushed)
    lost = {id for id in pushed if not settled[id]}
    lost |= {task.id for task in completed if not counted[task.id]}
    twice = {id for id, n in [*counted.items(), *settled.items()] if n > 1}
    again = sum(task.attempt - 1 for task in [*completed, *dead])
    fenced_off = len(effects) - sum(counted.values())
    causes = "after the kill, the hang and the retries"
    rejected = "rejected by its handler, on purpose"
    stale = f"{fenced_off} stale effects fenced off"
    differs = len(completed) + len(dead) != len(pushed)
    rows = [
        ReportRow("pushed", "pushed", len(pushed), wrong=differs),
        ReportRow("completed", "completed", len(completed)),
        ReportRow("dead_lettered", "dead-lettered", len(dead), rejected),
        ReportRow("redelivered", "redelivered", again, causes),
        ReportRow("lost", "lost", len(lost), wrong=lost),
        ReportRow("done_twice", "done twice", len(twice), stale, wrong=twice),
    ]
    return DemoReport(rows, _TERMS, {"fenced_off": fenced_off})
