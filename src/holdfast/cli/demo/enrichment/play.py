"""What happens in the first act, in order, and how it ends.

push ─▶ workers start ─▶ a handler hangs ─▶ the watchdog ends it
                      └▶ a worker is killed ─▶ its leases run out ─▶ others go on
                                                    all done ─▶ workers drain ─▶ books
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.bootstrap import open_queue
from holdfast.cli.demo.crew import WorkerHandle, WorkerProcesses
from holdfast.cli.demo.enrichment.books import Books, Ended, balance, read_ledger
from holdfast.cli.demo.enrichment.scene import QueueScene
from holdfast.cli.demo.enrichment.tasks import HANGS, LEDGER, DemoTask, cast
from holdfast.cli.demo.stage import DemoScreen
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.queue.manager import MessageInfo, MessageState, QueueStats

LEASE_SECONDS = 4.0
STALL_SECONDS = 2.0
CONCURRENCY = 2
_LOOK_SECONDS = 0.1
_KILL_AFTER = 0.25  # of the tasks done
_ALL = 10**9


@dataclass(frozen=True, slots=True)
class Script:
    tasks: int = 300
    workers: int = 4
    give_up_seconds: float = 150.0


class Play:
    """One performance in one folder."""

    def __init__(self, script: Script, folder: Path, stage: DemoScreen) -> None:
        self._script, self._folder, self._stage = script, folder, stage
        self._url = str(folder / "demo" / "enrich")
        self._queue = open_queue(self._url, DemoTask, env={})
        self._ledger = folder / "effects.jsonl"
        self._victim: WorkerHandle | None = None
        self._killed_at = 0.0
        self._orphans = 0

    def run(self) -> Books:
        with self._queue, self._stage:
            pushed = self._queue.push_many(cast(self._script.tasks))
            self._stage.tell(f"pushed {len(pushed)} enrichment tasks")
            with self._crew() as crew:
                for _ in range(self._script.workers):
                    crew.hire(self._arguments())
                self._stage.tell(f"starting {len(crew.hands)} worker processes")
                self._watch(crew)
            self._stage.draw(QueueScene(self._queue.stats(), crew.hands))
            return self._balance(pushed)

    def _crew(self) -> WorkerProcesses:
        return WorkerProcesses(self._folder, {LEDGER: str(self._ledger)}, self._hear)

    def _arguments(self) -> list[str]:
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

    # -- the course of events

    def _watch(self, crew: WorkerProcesses) -> None:
        """Until all is settled; or nobody is left, or it takes too long."""
        give_up_at = SYSTEM_CLOCK.monotonic() + self._script.give_up_seconds
        while True:
            stats = self._queue.stats()
            self._stage.draw(QueueScene(stats, crew.hands))
            if (stats.completed or 0) + stats.failed >= self._script.tasks:
                self._stage.tell("every task is settled: the workers are told to drain")
                return
            if not any(hand.alive for hand in crew.hands):
                self._stage.tell(f"no worker is left: {crew.last_words}")
                return
            if SYSTEM_CLOCK.monotonic() > give_up_at:
                self._stage.tell("this takes too long: giving up")
                return
            self._intervene(stats, crew.hands)
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

    def _intervene(self, stats: QueueStats, hands: Sequence[WorkerHandle]) -> None:
        if self._victim is None:
            if (stats.completed or 0) >= self._script.tasks * _KILL_AFTER:
                self._kill_somebody(hands)
        elif self._orphans and not self._held_by(self._victim):
            self._orphans = 0
            after = SYSTEM_CLOCK.monotonic() - self._killed_at
            self._stage.tell(
                f"all it held is in other hands, {after:.1f} s after the kill "
                f"(lease {LEASE_SECONDS:.0f} s, looked for twice a second)"
            )

    def _kill_somebody(self, hands: Sequence[WorkerHandle]) -> None:
        """The next best worker that holds work, but not the one the hung handler is with:
        that one is the watchdog's."""
        for hand in hands:
            held = self._held_by(hand)
            if held and not any(_hangs(task) for task in held):
                # Frozen it can settle nothing, so what it holds now is what dies with it.
                hand.send(signal.SIGSTOP)
                if orphans := self._held_by(hand):
                    self._kill(hand, orphans)
                    return
                hand.send(signal.SIGCONT)

    def _kill(self, hand: WorkerHandle, orphans: Sequence[MessageInfo]) -> None:
        hand.kill()
        self._victim, self._orphans = hand, len(orphans)
        self._killed_at = SYSTEM_CLOCK.monotonic()
        ids = ", ".join(task.id for task in orphans)
        hand.fate = f"killed with SIGKILL, holding {ids}"
        self._stage.tell(f"worker {hand.number} (pid {hand.pid}) is {hand.fate}")

    def _held_by(self, hand: WorkerHandle) -> list[MessageInfo]:
        leased = self._queue.peek(MessageState.LEASED, _ALL)
        return [task for task in leased if task.holder and task.holder.pid == hand.pid]

    def _hear(self, hand: WorkerHandle, event: dict[str, Any]) -> None:
        """Turns of the story that only the workers know."""
        by = f"worker {hand.number}"
        match event:
            case {"event": "claimed", "message_id": task, "attempt": 1} if task == HANGS:
                self._stage.tell(f"{by}: takes {task}, whose handler will hang")
            case {"event": "child_killed", "message_id": task, "reason": reason}:
                self._stage.tell(f"{by}: the watchdog ended the handler of {task}: {reason}")
            case {"event": "dead_lettered", "message_id": task, "reason": reason}:
                self._stage.tell(f"{by}: {task} is a dead letter: {reason}")
            case {"event": "retried", "message_id": task, "reason": reason}:
                self._stage.tell(f"{by}: {task} will be tried again: {reason}")
            case {"event": "lease_gone", "message_id": task, "reason": reason}:
                self._stage.tell(f"{by}: lost the lease of {task}: {reason}")

    # -- the end

    def _balance(self, pushed: list[str]) -> Books:
        return balance(
            pushed,
            self._ended(MessageState.COMPLETED),
            self._ended(MessageState.FAILED),
            read_ledger(self._ledger),
        )

    def _ended(self, state: MessageState) -> list[Ended]:
        return [Ended(task.id, task.attempts) for task in self._queue.peek(state, _ALL)]


def _hangs(task: MessageInfo) -> bool:
    return task.id == HANGS and task.attempts == 1
