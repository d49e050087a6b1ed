"""Compare the pushed tasks with what the queue and the effect log show of them."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.cli.demo.screen import DemoReport, ReportRow

_TERMS = (
    "An effect counts if the queue completed the attempt that made it. Effects of killed or "
    "overtaken attempts are fenced off. Done twice means two effects that count."
)


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
    rejected = "rejected by its handler, on purpose"
    stale = f"{fenced_off} stale effects fenced off"
    differs = len(completed) + len(dead) != len(pushed)
    rows = [
        ReportRow("pushed", "pushed", len(pushed), wrong=differs),
        ReportRow("completed", "completed", len(completed)),
        ReportRow("dead_lettered", "dead-lettered", len(dead), rejected),
        ReportRow(
            "redelivered", "redelivered", again, "after the kill, the hang and the retries"
        ),
        ReportRow("lost", "lost", len(lost), wrong=bool(lost)),
        ReportRow("done_twice", "done twice", len(twice), stale, wrong=bool(twice)),
    ]
    return DemoReport(rows, _TERMS, {"fenced_off": fenced_off})
