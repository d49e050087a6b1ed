"""A log of what each process did, and the promises that it shows kept or broken."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, TypeVar

from chaos.rounds import Promises, RoundFolder

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. `at` is on the clock that all processes of the machine share."""

    what: str
    message_id: str = "-"
    key: str = "-"
    fence: int = 0
    worker: str = "-"
    at: float = 0.0

    @property
    def hold(self) -> tuple[str, str, int, str]:
        """Return what identifies a delivery to a worker."""
        return self.message_id, self.key, self.fence, self.worker


class EventLog:
    """A file of entries that many processes append to, one line in one write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *entries: Entry) -> None:
        """Append entries."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            for each in entries:
                words = (*each.hold[:3], each.worker, repr(each.at))
                os.write(fd, f"{each.what} {' '.join(map(str, words))}\n".encode())
        finally:
            os.close(fd)

    def count(self, what: str) -> int:
        """Return the number of entries of one kind, also while others append."""
        text = self.path.read_text() if self.path.exists() else ""
        return f"\n{text}".count(f"\n{what} ")

    def entries(self) -> Iterator[Entry]:
        """Yield all entries in the order of their writes."""
        for line in self.path.read_text().splitlines():
            what, message_id, key, fence, worker, at = line.split(" ")
            yield Entry(what, message_id, key, int(fence), worker, float(at))


class LoggedFolder(RoundFolder):
    """The folder of a round whose processes record what they do."""

    @property
    def event_log(self) -> EventLog:
        """Return the round's event log."""
        return EventLog(self.root / "events")


@dataclass
class EventAccounting(Promises):
    """The events of one round."""

    entries: list[Entry]
    counts_expired: ClassVar[bool] = True  # deliveries whose lease had already expired

    def select(self, what: str) -> list[Entry]:
        """Return all events of one kind."""
        return [entry for entry in self.entries if entry.what == what]

    def list_ids(self, what: str) -> list[str]:
        """Return the message ids of all events of one kind."""
        return [entry.message_id for entry in self.select(what)]

    def find_overlaps(self) -> list[str]:
        """Return what two living workers held at the same time, each within its lease
        (I-FQ-3).
        """
        ends = self._find_ends()
        spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for entry in self.select("held"):
            end = max(entry.at, ends.get(entry.hold, entry.at))
            if end > entry.at or self.counts_expired:
                spans[f"{entry.message_id} {entry.key}"].append((entry.at, end))
        return [name for name, holds in spans.items() if _has_overlap(sorted(holds))]

    def _find_ends(self) -> dict[tuple[str, str, int, str], float]:
        """Return when each hold ended: at its end, its worker's or its lease's."""
        killed_at = {entry.worker: entry.at for entry in self.select("killed")}
        ends = {
            entry.hold: min(entry.at, killed_at[entry.worker])
            for entry in self.select("trusts")
            if entry.worker in killed_at
        }
        return ends | {entry.hold: entry.at for entry in self.select("let-go")}


def find_repeated(values: Iterable[T]) -> list[T]:
    """Return the values that occur more than once."""
    return [value for value, times in Counter(values).items() if times > 1]


def _has_overlap(spans: list[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))
