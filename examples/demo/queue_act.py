"""The queue act: a worker is killed, and a handler hangs.

Each effect of a handler is a line in a file, with the attempt that made it. So the totals show
what was really done, without trusting the queue.

push ─▶ workers start ─▶ a handler hangs ─▶ the watchdog ends it
                      └▶ a worker is killed ─▶ its leases end ─▶ others take over
                                              all settled ─▶ workers drain ─▶ totals
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import ALL, Act, Process, Stage, Total

from holdfast import Context, MessageState, QueueMessage, Reject

LEASE_SECONDS = 4.0
KILL_AFTER = 0.25  # the share of completed tasks
OPTIONS = (
    f"--isolation=process --concurrency=2 --lease={LEASE_SECONDS} --stall=2 --max-attempts=8 "
    "--drain=5 --log-format=json"
)
EFFECTS = "effects.jsonl"  # in the folder of the demo, where its processes run
STEP_SECONDS = 0.25
FOREVER_SECONDS = 3600.0
HANGING_TASK = "company-002"  # its handler hangs in the first attempt
HABITS = {2: "hangs", 5: "poison", 8: "flaky", 20: "flaky"}


class DemoTask(QueueMessage):
    """A company to enrich, and how its handler behaves: quick or long, or as in HABITS."""

    domain: str
    habit: str


def make_tasks(count: int) -> list[DemoTask]:
    """Return mostly quick tasks, a few long ones, and the misbehaving ones early on."""
    habits = dict.fromkeys(range(3, count, 12), "long") | HABITS
    names = [f"company-{number:03}" for number in range(count)]
    return [
        DemoTask(id=name, domain=f"{name}.example", habit=habits.get(number, "quick"))
        for number, name in enumerate(names)
    ]


def enrich(task: DemoTask, ctx: Context) -> Reject | None:
    """Enrich a company step by step and record the effect. `holdfast work` runs this."""
    if task.habit == "poison":
        return Reject(f"{task.domain} cannot have a website")
    if task.habit == "hangs" and ctx.attempt == 1:
        time.sleep(FOREVER_SECONDS)  # without a beat, so the watchdog ends it
    if task.habit == "flaky" and ctx.attempt == 1:
        raise TimeoutError(f"{task.domain} did not answer")
    steps = 8 if task.habit == "long" else 1
    for step in range(ctx.checkpoint or 0, steps):
        time.sleep(STEP_SECONDS)
        ctx.beat(progress=(step + 1) / steps, checkpoint=step + 1 if steps > 1 else None)
    ctx.raise_if_lost()
    # One write, so that the lines of several processes do not mix.
    with Path(EFFECTS).open("ab", buffering=0) as file:
        file.write(f"{json.dumps({'id': task.id, 'attempt': ctx.attempt})}\n".encode())
    return None


class QueueAct(Act):
    """Enrichment tasks, and several workers."""

    title = "{tasks} tasks, a killed worker, a hung handler"
    inspect = "holdfast status {url} (and list, explain, dead)"
    queue_name = "demo/enrich"
    message = DemoTask
    done = "completed"
    story: ClassVar = {
        "child_killed": "the watchdog ended the handler of {message_id}: {reason}",
        "dead_lettered": "{message_id} is dead-lettered: {reason}",
        "retried": "{message_id} will be retried: {reason}",
        "message_lease_lost": "lost the lease of {message_id}: {reason}",
    }
    terms = (
        "An effect counts if the queue completed the attempt that made it. Effects of killed "
        "or overtaken attempts are fenced off. Done twice means two effects that count."
    )

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        work = ("holdfast.cli", "work", self.url, "queue_act:enrich")
        self.command = [*work, *OPTIONS.split()]
        self.pushed: Sequence[str] = ()

    def run_steps(self) -> None:
        """Start the workers, kill one of them, and wait until every task is settled."""
        self.pushed = self.queue.push_many(make_tasks(self.stage.sizes["tasks"]))
        self.screen.report(f"pushed {len(self.pushed)} enrichment tasks")
        for _ in range(self.stage.sizes["workers"]):
            self.start()
        self.wait_until(lambda: self._is_settled() or self._kill_one())
        for victim in [worker for worker in self.started if worker.outcome]:
            self.wait_until(lambda: not self._find_held_by(victim))  # noqa: B023  # used now
            self.screen.report(
                f"other workers have taken over its tasks, {self.describe_takeover()} "
                f"(lease {LEASE_SECONDS:.0f} s, polled twice a second)"
            )
        self.wait_until(self._is_settled)
        self.screen.report("every task is settled; the workers drain")

    def _is_settled(self) -> bool:
        stats = self.queue.stats()
        return (stats.completed or 0) + stats.failed >= len(self.pushed)

    def _kill_one(self) -> bool:
        """Kill the first worker that holds tasks, except the one whose handler hangs.

        The watchdog of that worker ends the hung handler. Returns whether one was killed.
        """
        if (self.queue.stats().completed or 0) < len(self.pushed) * KILL_AFTER:
            return False
        for worker in self.started:
            held = self._find_held_by(worker)
            if held and held.get(HANGING_TASK) != 1:
                # A stopped process settles nothing, so it dies with exactly what it holds now.
                worker.send_signal(signal.SIGSTOP)
                if orphans := ", ".join(self._find_held_by(worker)):
                    self.kill(worker, partial("holding {}".format, orphans))
                    return True
                worker.send_signal(signal.SIGCONT)
        return False

    def _find_held_by(self, worker: Process) -> dict[str, int]:
        """Return the tasks that a worker holds, with their attempts."""
        leased = self.queue.peek(MessageState.LEASED, ALL)
        held = [task for task in leased if task.holder and task.holder.pid == worker.pid]
        return {task.id: task.attempts for task in held}

    def list_shares(self) -> Sequence[tuple[str, int, str]]:
        """Return the counts of the queue."""
        stats = self.queue.stats()
        return [
            ("completed", stats.completed or 0, "green"),
            ("leased", stats.leased, "yellow"),
            ("ready", stats.ready, "blue"),
            ("delayed", stats.delayed, "cyan"),
            ("failed", stats.failed, "red"),
        ]

    def list_totals(self) -> Sequence[Total]:
        """Compare the pushed tasks with what the queue and the effects show of them."""
        completed, dead = (
            [(task.id, task.attempts) for task in self.queue.peek(state, ALL)]
            for state in (MessageState.COMPLETED, MessageState.FAILED)
        )
        path = self.folder / EFFECTS
        # Without an incomplete last line, which a killed process may have left.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        effects = [(effect["id"], effect["attempt"]) for effect in map(json.loads, lines)]
        return list_totals(self.pushed, completed, dead, effects)


Attempts = Sequence[tuple[str, int]]
"""The ids of tasks, with the attempt that settled each or had an effect."""


def list_totals(
    pushed: Iterable[str], completed: Attempts, dead: Attempts, effects: Attempts
) -> Sequence[Total]:
    """Return the totals.

    A task is lost if it is not settled, or completed without an effect that counts.
    """
    asked, settled = set(pushed), [*completed, *dead]
    counted = Counter(id for id, attempt in effects if (id, attempt) in completed)
    times = Counter(id for id, _ in settled)
    lost = asked - times.keys() | dict(completed).keys() - counted.keys()
    twice = {id for id, n in [*counted.items(), *times.items()] if n > 1}
    again = sum(attempt - 1 for _, attempt in settled)
    stale = len(effects) - counted.total()
    rejected = "rejected by its handler, on purpose"
    causes = "after the kill, the hang and the retries"
    return [
        Total("pushed", "pushed", len(asked), len(settled)),
        Total("completed", "completed", len(completed)),
        Total("dead_lettered", "dead-lettered", len(dead), None, rejected),
        Total("redelivered", "redelivered", again, None, causes),
        Total("lost", "lost", len(lost), 0),
        Total("done_twice", "done twice", len(twice), 0),
        Total("fenced_off", "fenced off", stale, None, "effects of stale attempts"),
    ]
