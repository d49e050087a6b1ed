"""Compare the event log with the queue and list every broken promise."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.event_log import Entry
from chaos.kinds import End


@dataclass
class Accounting:
    """The events of one round and the final state of each task."""

    entries: list[Entry]
    ends: list[End]
    get_mark: Callable[[str], str]  # by which the queue identifies a message id
    end_by_key: dict[str, tuple[str, int]] = field(default_factory=dict)  # state and fence

    def __post_init__(self) -> None:
        self.end_by_key = {end.key: (end.state, end.fence) for end in self.ends}

    def list_ids(self, what: str) -> list[str]:
        """Return the message ids of all events of one kind."""
        return [entry.message_id for entry in self.entries if entry.what == what]

    def find_doubles(self) -> list[str]:
        """Return pushes that are in more than one place."""
        counted = Counter(end.key for end in self.ends)
        return [key for key, times in counted.items() if times > 1]

    # -- promises

    def find_lost(self) -> list[str]:
        """Return messages that were pushed and are nowhere (I-FQ-1, I-FQ-2)."""
        known_marks = {end.mark for end in self.ends}
        return [
            message_id
            for message_id in self.list_ids("pushed")
            if self.get_mark(message_id) not in known_marks
        ]

    def find_done_twice(self) -> list[str]:
        """Return marks of ids that were pushed again while a task of theirs was unfinished."""
        completed = Counter(end.mark for end in self.ends if end.state == "completed")
        return [mark for mark, times in completed.items() if times > 1]

    def find_unfinished(self) -> list[str]:
        """Return tasks that are neither completed nor failed."""
        return [
            key
            for key, (state, _) in self.end_by_key.items()
            if state not in ("completed", "failed")
        ]

    def find_acked_twice(self) -> list[str]:
        """Return tasks that were acked twice (I-FQ-5)."""
        acked = Counter(entry.key for entry in self.entries if entry.what == "acked")
        return [key for key, times in acked.items() if times > 1]

    def find_wrongly_acked(self) -> list[str]:
        """Return acked tasks that another attempt, or no attempt, completed according to the
        queue (I-FQ-4).
        """
        return [
            entry.key
            for entry in self.entries
            if entry.what == "acked"
            and self.end_by_key.get(entry.key) != ("completed", entry.fence)
        ]

    def find_repeated_effects(self) -> list[str]:
        """Return completed tasks whose effect is not exactly that of the completing attempt.

        The effect with the highest fence must occur once, and must belong to the attempt that
        completed the task (I-FQ-11).
        """
        effects: dict[str, Counter[int]] = defaultdict(Counter)
        for entry in self.entries:
            if entry.what == "effect":
                effects[entry.key][entry.fence] += 1
        return [
            key
            for key, (state, fence) in self.end_by_key.items()
            if state == "completed"
            and (max(effects[key], default=0) != fence or effects[key][fence] != 1)
        ]

    def find_overlaps(self) -> list[str]:
        """Return tasks that two workers held at the same time, each within its own lease
        (I-FQ-3).
        """
        starts = {
            (entry.key, entry.fence): entry.at for entry in self.entries if entry.what == "held"
        }
        holds: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for entry in self.entries:
            if entry.what == "let-go":
                start = starts[entry.key, entry.fence]
                if entry.at > start:  # otherwise the lease had expired when it was delivered
                    holds[entry.key].append((start, entry.at))
        return [key for key, spans in holds.items() if _has_overlap(sorted(spans))]

    def find_repeated_fences(self) -> list[tuple[str, int]]:
        """Return claims whose fence was given twice."""
        held = Counter(
            (entry.key, entry.fence) for entry in self.entries if entry.what == "held"
        )
        return [claim for claim, times in held.items() if times > 1]

    def check(self) -> None:
        """Assert that every promise was kept."""
        assert self.list_ids("violation") == []
        assert self.find_lost() == []
        assert self.find_unfinished() == []
        assert self.find_done_twice() == []
        assert self.find_acked_twice() == []
        assert self.find_wrongly_acked() == []
        assert self.find_repeated_effects() == []
        assert self.find_overlaps() == []
        assert self.find_repeated_fences() == []
        assert self.find_doubles() == []

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


def _has_overlap(spans: list[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))
