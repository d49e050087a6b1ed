"""Compare the pushed tasks with what the queue and the effect log show of them."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.demo.screen import ReportRow

_TERMS = (
    "An effect counts if the queue completed the attempt that made it. Effects of killed or "
    "overtaken attempts are fenced off. Done twice means two effects that count."
)


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect in the effect log."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class SettledTask:
    """A task that the queue has settled, and the attempt that settled it."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class EnrichmentReport:
    """The accounting report of the queue scenario."""

    pushed: int
    completed: int
    dead_lettered: int
    redelivered: int  # deliveries beyond each task's first
    fenced_off: int  # effects that do not count
    lost: int
    done_twice: int

    @property
    def totals_match(self) -> bool:
        """Return whether every task was settled once, with one effect if completed."""
        settled = self.completed + self.dead_lettered
        return settled == self.pushed and not self.lost and not self.done_twice

    def list_rows(self) -> list[ReportRow]:
        """Return the lines of the report."""
        return [
            ReportRow("pushed", self.pushed),
            ReportRow("completed", self.completed),
            ReportRow(
                "dead-lettered",
                self.dead_lettered,
                "rejected by its handler, on purpose",
            ),
            ReportRow(
                "redelivered", self.redelivered, "after the kill, the hang and the retries"
            ),
            ReportRow("lost", self.lost, wrong=self.lost > 0),
            ReportRow(
                "done twice",
                self.done_twice,
                f"{self.fenced_off} stale effects fenced off",
                wrong=self.done_twice > 0,
            ),
        ]

    def explain_terms(self) -> str:
        """Return what the labels mean."""
        return _TERMS


def make_report(
    pushed: Iterable[str],
    completed: list[SettledTask],
    dead: list[SettledTask],
    effects: list[Effect],
) -> EnrichmentReport:
    """Return the report.

    A task is lost if it is not settled, or completed without an effect that counts.
    """
    accepted = {(task.id, task.attempt) for task in completed}
    counted = Counter(e.id for e in effects if (e.id, e.attempt) in accepted)
    settled = Counter(task.id for task in [*completed, *dead])
    pushed = set(pushed)
    lost = {id for id in pushed if not settled[id]}
    lost |= {task.id for task in completed if not counted[task.id]}
    twice = {id for id, n in counted.items() if n > 1} | {
        id for id, n in settled.items() if n > 1
    }
    return EnrichmentReport(
        pushed=len(pushed),
        completed=len(completed),
        dead_lettered=len(dead),
        redelivered=sum(task.attempt - 1 for task in [*completed, *dead]),
        fenced_off=len(effects) - sum(counted.values()),
        lost=len(lost),
        done_twice=len(twice),
    )


def read_effects(path: Path) -> list[Effect]:
    """Return the effects in an effect log, which may not exist yet."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Effect(line["id"], line["attempt"]) for line in lines]
