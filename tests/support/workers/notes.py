"""Notes of handlers in other processes, and waiting for them.

Children import this module, so it imports little.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

WAIT_TIMEOUT = 60.0  # for a machine that is busy with other things

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = WAIT_TIMEOUT) -> T:
    """Wait until the condition is true, and return its value."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)
    return found


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
        return int(eventually(lambda: self.values(word))[0])
