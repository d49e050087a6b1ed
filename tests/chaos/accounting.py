"""Compare the event log with the queue and list every broken promise."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from chaos.events import EventAccounting, find_repeated
from chaos.kinds import End


@dataclass
class Accounting(EventAccounting):
    """The events of one round and the final state of each task."""

    counts_expired: ClassVar[bool] = False
    ends: list[End]
    get_mark: Callable[[str], str]  # by which the queue identifies a message id

    def __post_init__(self) -> None:
        self.end_by_key = {end.key: (end.state, end.fence) for end in self.ends}

    def find_violations(self) -> list[str]:
        """Return what the reader saw incomplete."""
        return self.list_ids("violation")

    def find_doubles(self) -> list[str]:
        """Return pushes that are in more than one place."""
        return find_repeated(end.key for end in self.ends)

    def find_lost(self) -> list[str]:
        """Return messages that were pushed and are nowhere (I-FQ-1, I-FQ-2)."""
        known_marks = {end.mark for end in self.ends}
        pushed = self.list_ids("pushed")
        return [each for each in pushed if self.get_mark(each) not in known_marks]

    def find_done_twice(self) -> list[str]:
        """Return marks of ids that were pushed again while a task of theirs was unfinished."""
        return find_repeated(end.mark for end in self.ends if end.state == "completed")

    def find_unfinished(self) -> list[str]:
        """Return tasks that are neither completed nor failed."""
        return [end.key for end in self.ends if end.state not in ("completed", "failed")]

    def find_acked_twice(self) -> list[str]:
        """Return tasks that were acked twice (I-FQ-5)."""
        return find_repeated(entry.key for entry in self.select("acked"))

    def find_wrongly_acked(self) -> list[str]:
        """Return acked tasks that another attempt, or no attempt, completed according to the
        queue (I-FQ-4).
        """
        return [
            entry.key
            for entry in self.select("acked")
            if self.end_by_key.get(entry.key) != ("completed", entry.fence)
        ]

    def find_repeated_effects(self) -> list[str]:
        """Return completed tasks whose effect is not exactly that of the completing attempt.

        The effect with the highest fence must occur once, and must belong to the attempt that
        completed the task (I-FQ-11).
        """
        effects: dict[str, Counter[int]] = defaultdict(Counter)
        for entry in self.select("effect"):
            effects[entry.key][entry.fence] += 1
        return [
            key
            for key, (state, fence) in self.end_by_key.items()
            if state == "completed"
            and (max(effects[key], default=0) != fence or effects[key][fence] != 1)
        ]

    def find_repeated_fences(self) -> list[tuple[str, int]]:
        """Return claims whose fence was given twice."""
        return find_repeated((entry.key, entry.fence) for entry in self.select("held"))

    def format_summary(self) -> str:
        """Return the totals in one line."""
        states = Counter(state for state, _ in self.end_by_key.values())
        counts = Counter(entry.what for entry in self.entries)
        return (
            f"pushed {counts['pushed']}, completed {states['completed']}, "
            f"dead {states['failed']}, claims {counts['held']}, refused {counts['refused']}, "
            f"reads {counts['read']}, "
            f"lost {len(self.find_lost())}, acked twice {len(self.find_acked_twice())}"
        )
