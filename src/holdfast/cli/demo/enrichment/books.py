"""The books: what was pushed against what the queue and the ledger say became of it."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.demo.stage import Row

_DEFINITION = (
    "An effect counts when the attempt that made it is the one the queue completed; what "
    "a killed or overtaken attempt left behind is fenced off. Done twice: two that count."
)


@dataclass(frozen=True, slots=True)
class Effect:
    """A line of the ledger."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A task the queue has finished with, and the attempt that finished it."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Books:
    pushed: int
    completed: int
    dead_lettered: int
    redelivered: int  # deliveries beyond each task's first
    fenced_off: int  # effects that do not count
    lost: int
    done_twice: int

    @property
    def balance(self) -> bool:
        settled = self.completed + self.dead_lettered
        return settled == self.pushed and not self.lost and not self.done_twice

    def rows(self) -> list[Row]:
        return [
            Row("pushed", self.pushed),
            Row("completed", self.completed),
            Row(
                "dead-lettered",
                self.dead_lettered,
                "rejected for good by its handler, on purpose",
            ),
            Row("redelivered", self.redelivered, "after the kill, the hang and the retries"),
            Row("lost", self.lost, wrong=self.lost > 0),
            Row(
                "done twice",
                self.done_twice,
                f"{self.fenced_off} stale effects fenced off",
                wrong=self.done_twice > 0,
            ),
        ]

    def definition(self) -> str:
        return _DEFINITION


def balance(
    pushed: Iterable[str],
    completed: list[Ended],
    dead: list[Ended],
    effects: list[Effect],
) -> Books:
    """Lost: settled nowhere, or completed without an effect that counts."""
    accepted = {(task.id, task.attempt) for task in completed}
    counted = Counter(e.id for e in effects if (e.id, e.attempt) in accepted)
    settled = Counter(task.id for task in [*completed, *dead])
    pushed = set(pushed)
    lost = {id for id in pushed if not settled[id]}
    lost |= {task.id for task in completed if not counted[task.id]}
    twice = {id for id, n in counted.items() if n > 1} | {
        id for id, n in settled.items() if n > 1
    }
    return Books(
        pushed=len(pushed),
        completed=len(completed),
        dead_lettered=len(dead),
        redelivered=sum(task.attempt - 1 for task in [*completed, *dead]),
        fenced_off=len(effects) - sum(counted.values()),
        lost=len(lost),
        done_twice=len(twice),
    )


def read_ledger(path: Path) -> list[Effect]:
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Effect(line["id"], line["attempt"]) for line in lines]
