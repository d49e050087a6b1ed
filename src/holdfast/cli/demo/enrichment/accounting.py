"""Compare the pushed tasks with what the queue and the effect log show of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from holdfast.cli.demo.screen import DemoReport, ReportRow


class Attempt(NamedTuple):
    """An attempt of a task that settled it, or that made an effect."""

    id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class EnrichmentReport(DemoReport):
    """The accounting report of the queue scenario."""

    terms: ClassVar[str] = (
        "An effect counts if the queue completed the attempt that made it. Effects of killed "
        "or overtaken attempts are fenced off. Done twice means two effects that count."
    )
    pushed: int
    completed: int
    dead_lettered: int
    redelivered: int  # deliveries beyond each task's first
    fenced_off: int  # effects that do not count
    lost: int
    done_twice: int

    def list_rows(self) -> list[ReportRow]:
        """Return the lines of the report."""
        settled = self.completed + self.dead_lettered
        rejected = "rejected by its handler, on purpose"
        redelivered = "after the kill, the hang and the retries"
        stale = f"{self.fenced_off} stale effects fenced off"
        return [
            ReportRow("pushed", self.pushed, wrong=self.pushed != settled),
            ReportRow("completed", self.completed),
            ReportRow("dead-lettered", self.dead_lettered, rejected),
            ReportRow("redelivered", self.redelivered, redelivered),
            ReportRow("lost", self.lost, wrong=self.lost > 0),
            ReportRow("done twice", self.done_twice, stale, wrong=self.done_twice > 0),
        ]


def make_report(
    pushed: Iterable[str],
    completed: list[Attempt],
    dead: list[Attempt],
    effects: list[Attempt],
) -> EnrichmentReport:
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
    return EnrichmentReport(
        pushed=len(pushed),
        completed=len(completed),
        dead_lettered=len(dead),
        redelivered=sum(task.attempt - 1 for task in [*completed, *dead]),
        fenced_off=len(effects) - sum(counted.values()),
        lost=len(lost),
        done_twice=len(twice),
    )
