"""What happened, by everybody's own account: one line each, appended in one write."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """`at` is on the clock that all processes of the machine share."""

    what: str
    message_id: str = "-"
    key: str = "-"
    fence: int = 0
    worker: str = "-"
    at: float = 0.0


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, entry: Entry) -> None:
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
        for line in self.path.read_text().splitlines():
            what, message_id, key, fence, worker, at = line.split(" ")
            yield Entry(what, message_id, key, int(fence), worker, float(at))
