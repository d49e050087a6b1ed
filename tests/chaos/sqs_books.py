"""Do the books balance? From the workers' ledger and the server's own books."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from chaos.ledger import Entry
from chaos.sqs_server import ServerBooks

Hold = tuple[str, int, str]  # message, fence, worker


@dataclass(frozen=True, slots=True)
class SqsBooks:
    entries: list[Entry]
    server: ServerBooks

    def ids(self, what: str) -> list[str]:
        return [entry.message_id for entry in self.entries if entry.what == what]

    # -- promises

    def lost(self) -> list[str]:
        """Pushed, and nobody worked it to its end."""
        done = set(self.ids("done"))
        return [pushed for pushed in self.ids("pushed") if pushed not in done]

    def not_deleted_once(self) -> dict[str, int]:
        """By the server's word."""
        deleted = Counter(self.server.deleted)
        return {sent: n for sent in self.server.sent if (n := deleted[sent]) != 1}

    def acked_twice(self) -> list[str]:
        """Two who both believed that it was they who completed it."""
        return [i for i, times in Counter(self.ids("acked")).items() if times > 1]

    def acked_undone(self) -> list[Hold]:
        """Acknowledged by an attempt that had not done it."""
        done = {_hold(entry) for entry in self.entries if entry.what == "done"}
        acked = [_hold(entry) for entry in self.entries if entry.what == "acked"]
        return [hold for hold in acked if hold not in done]

    def overlaps(self) -> list[str]:
        """Worked on by two at the same time, each alive and trusting its lease."""
        ends = self._ends()
        spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for hold, begun in self._times("held").items():
            spans[hold[0]].append((begun, max(begun, ends.get(hold, begun))))
        return [i for i, holds in spans.items() if _overlap(sorted(holds))]

    def _ends(self) -> dict[Hold, float]:
        """When each was let go of, or killed, but not after the end of its lease."""
        killed_at = {entry.worker: entry.at for entry in self._of("killed")}
        trusted = self._times("trusts")
        ends = {
            hold: min(until, killed_at[hold[2]])
            for hold, until in trusted.items()
            if hold[2] in killed_at
        }
        return ends | self._times("let-go")

    def taken_over(self) -> int:
        return sum(entry.fence > 1 for entry in self._of("done"))

    def check(self) -> None:
        assert self.lost() == []
        assert self.not_deleted_once() == {}
        assert self.acked_twice() == []
        assert self.acked_undone() == []
        assert self.overlaps() == []

    def summary(self) -> str:
        said = Counter(entry.what for entry in self.entries)
        return (
            f"pushed {said['pushed']}, done {said['done']}, acked {said['acked']}, "
            f"deleted {sum(self.server.deleted.values())}, taken over {self.taken_over()}, "
            f"receives {self.server.receives}, deletes repeated {self.server.repeated}, "
            f"stale {self.server.stale}"
        )

    def _of(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.what == what]

    def _times(self, what: str) -> dict[Hold, float]:
        """The last time each hold said so."""
        return {_hold(entry): entry.at for entry in self._of(what)}


def _hold(entry: Entry) -> Hold:
    return entry.message_id, entry.fence, entry.worker


def _overlap(spans: list[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))
