"""A log of what each process did, one line per event, each appended in one write."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. `at` is on the clock that all processes of the machine share."""

    what: str
    message_id: str = "-"
    key: str = "-"
    fence: int = 0
    worker: str = "-"
    at: float = 0.0


class EventLog:
    """A file of entries that many processes append to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        line = (
            f"{entry.what} {entry.message_id} {entry.key} {entry.fence} {entry.worker} "
            f"{entry.at!r}\n"
        )
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries in the order of their writes."""
        for line in self.path.read_text().splitlines():
            what, message_id, key, fence, worker, at = line.split(" ")
            yield Entry(what, message_id, key, int(fence), worker, float(at))
