"""Do the books balance? From the ledger and the folder alone."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from chaos.ledger import Entry
from fs import audit
from holdfast.adapters.local.filesystem import names

KEY_PART = 18


@dataclass
class Books:
    entries: list[Entry]
    folder: Path
    ends: dict[str, tuple[str, int]] = field(default_factory=dict)  # key: state, fence

    def __post_init__(self) -> None:
        self.ends = {t.key: (state, t.fence) for state, t, _ in audit.tasks(self.folder)}

    def ids(self, what: str) -> list[str]:
        return [entry.message_id for entry in self.entries if entry.what == what]

    def keys_of(self) -> dict[str, list[str]]:
        """By the hash of the id, which every key ends with."""
        found: dict[str, list[str]] = defaultdict(list)
        for key in self.ends:
            found[key[KEY_PART - 8 :]].append(key)
        return found

    # -- promises

    def lost(self) -> list[str]:
        """I-FQ-1, 2: pushed, and nowhere."""
        there = self.keys_of()
        return [i for i in self.ids("pushed") if names.id_hash(i)[:8] not in there]

    def done_twice(self) -> list[str]:
        """Hashes of ids that were pushed anew though a task of theirs was alive."""
        done = {k for k, (state, _) in self.ends.items() if state == "completed"}
        return [h for h, keys in self.keys_of().items() if len(done.intersection(keys)) > 1]

    def unfinished(self) -> list[str]:
        return [
            k for k, (state, _) in self.ends.items() if state not in ("completed", "failed")
        ]

    def acked_twice(self) -> list[str]:
        """I-FQ-5."""
        acked = Counter(entry.key for entry in self.entries if entry.what == "acked")
        return [key for key, times in acked.items() if times > 1]

    def wrongly_acked(self) -> list[str]:
        """I-FQ-4: acked, but the folder says another attempt did it, or none."""
        return [
            entry.key
            for entry in self.entries
            if entry.what == "acked" and self.ends.get(entry.key) != ("completed", entry.fence)
        ]

    def effects_not_once(self) -> list[str]:
        """I-FQ-11: of a completed task, the effect with the highest fence is there once,
        and it is that of the attempt that completed it."""
        effects: dict[str, Counter[int]] = defaultdict(Counter)
        for entry in self.entries:
            if entry.what == "effect":
                effects[entry.key][entry.fence] += 1
        return [
            key
            for key, (state, fence) in self.ends.items()
            if state == "completed"
            and (max(effects[key], default=0) != fence or effects[key][fence] != 1)
        ]

    def overlaps(self) -> list[str]:
        """I-FQ-3: held by two at the same time, each by its own trust."""
        starts = {(e.key, e.fence): e.at for e in self.entries if e.what == "held"}
        holds: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for entry in self.entries:
            if entry.what == "let-go":
                start = starts[entry.key, entry.fence]
                if entry.at > start:  # a lease that had run out when it was delivered
                    holds[entry.key].append((start, entry.at))
        return [key for key, spans in holds.items() if _overlap(sorted(spans))]

    def fences_given_twice(self) -> list[tuple[str, int]]:
        held = Counter((e.key, e.fence) for e in self.entries if e.what == "held")
        return [claim for claim, times in held.items() if times > 1]

    def check(self) -> None:
        assert self.ids("violation") == []
        assert self.lost() == []
        assert self.unfinished() == []
        assert self.done_twice() == []
        assert self.acked_twice() == []
        assert self.wrongly_acked() == []
        assert self.effects_not_once() == []
        assert self.overlaps() == []
        assert self.fences_given_twice() == []
        assert audit.faults(self.folder) == {}

    def summary(self) -> str:
        states = Counter(state for state, _ in self.ends.values())
        said = Counter(entry.what for entry in self.entries)
        return (
            f"pushed {said['pushed']}, completed {states['completed']}, "
            f"dead {states['failed']}, claims {said['held']}, refused {said['refused']}, "
            f"reads {said['read']}, "
            f"lost {len(self.lost())}, acked twice {len(self.acked_twice())}"
        )


def _overlap(spans: list[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))
