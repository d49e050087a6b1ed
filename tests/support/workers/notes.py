"""Processes of handlers: their notes, waiting for them, and whether they live.

Children import this module, so it imports little.
"""

import os
from pathlib import Path

from support.waiting import wait_until


def is_alive(pid: int) -> bool:
    """Return whether a thread of the process can still run, even if its first is dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


class Notes:
    """A file in which handlers in other processes record what they do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, line: str) -> None:
        """Append a line in one write, so that readers never see a part of it."""
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def values(self, word: str) -> list[str]:
        return [line.split(" ", 1)[1] for line in self.lines() if line.startswith(f"{word} ")]

    def pid(self, word: str = "pid") -> int:
        """Wait for the first process id recorded under that word, and return it."""
        return int(wait_until(lambda: self.values(word))[0])
