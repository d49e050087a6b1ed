"""Compare the workers' event log with the server's totals, and list broken promises."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from chaos.event_log import Entry
from chaos.sqs_server import ServerTotals

HoldKey = tuple[str, int, str]  # message, fence, worker


@dataclass(frozen=True, slots=True)
class SqsAccounting:
    """The events of one round and the server's totals."""

    entries: list[Entry]
    server: ServerTotals

    def list_ids(self, what: str) -> list[str]:
        """Return the message ids of all events of one kind."""
        return [entry.message_id for entry in self.entries if entry.what == what]

    # -- promises

    def find_lost(self) -> list[str]:
        """Return messages that were pushed but never completed."""
        completed = set(self.list_ids("done"))
        return [pushed for pushed in self.list_ids("pushed") if pushed not in completed]

    def find_not_deleted_once(self) -> dict[str, int]:
        """Return messages that the server did not delete exactly once, with the number."""
        deleted = Counter(self.server.deleted)
        return {sent: times for sent in self.server.sent if (times := deleted[sent]) != 1}

    def find_acked_twice(self) -> list[str]:
        """Return messages that two workers believe to have completed."""
        return [
            message_id
            for message_id, times in Counter(self.list_ids("acked")).items()
            if times > 1
        ]

    def find_acked_undone(self) -> list[HoldKey]:
        """Return acks by an attempt that had not completed the message."""
        done = {_hold_from_entry(entry) for entry in self.entries if entry.what == "done"}
        acked = [_hold_from_entry(entry) for entry in self.entries if entry.what == "acked"]
        return [hold for hold in acked if hold not in done]

    def find_overlaps(self) -> list[str]:
        """Return messages that two living workers handled at the same time, each within its
        lease.
        """
        ends = self._find_ends()
        spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for hold, begun in self._read_times("held").items():
            spans[hold[0]].append((begun, max(begun, ends.get(hold, begun))))
        return [
            message_id for message_id, holds in spans.items() if _has_overlap(sorted(holds))
        ]

    def _find_ends(self) -> dict[HoldKey, float]:
        """Return when each hold ended or its worker was killed, at most the end of
        its lease.
        """
        killed_at = {entry.worker: entry.at for entry in self._select("killed")}
        trusted = self._read_times("trusts")
        ends = {
            hold: min(until, killed_at[hold[2]])
            for hold, until in trusted.items()
            if hold[2] in killed_at
        }
        return ends | self._read_times("let-go")

    def count_taken_over(self) -> int:
        """Return how many messages another worker completed."""
        return sum(entry.fence > 1 for entry in self._select("done"))

    def check(self) -> None:
        """Assert that every promise was kept."""
        assert self.find_lost() == []
        assert self.find_not_deleted_once() == {}
        assert self.find_acked_twice() == []
        assert self.find_acked_undone() == []
        assert self.find_overlaps() == []

    def format_summary(self) -> str:
        """Return the totals in one line."""
        counts = Counter(entry.what for entry in self.entries)
        return (
            f"pushed {counts['pushed']}, done {counts['done']}, acked {counts['acked']}, "
            f"deleted {sum(self.server.deleted.values())}, "
            f"taken over {self.count_taken_over()}, "
            f"receives {self.server.receives}, deletes repeated {self.server.repeated}, "
            f"stale {self.server.stale}"
        )

    def _select(self, what: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.what == what]

    def _read_times(self, what: str) -> dict[HoldKey, float]:
        """Return the last time of this event for each hold."""
        return {_hold_from_entry(entry): entry.at for entry in self._select(what)}


def _hold_from_entry(entry: Entry) -> HoldKey:
    return entry.message_id, entry.fence, entry.worker


def _has_overlap(spans: list[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))
