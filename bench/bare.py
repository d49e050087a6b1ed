"""The bare system calls, made from Python: the minimum cost of a queue written in Python.

There is no message, lease or check, only the calls of floor.c through the os module. The
difference between this line and the bars is what types, leases and safety may cost.
"""

import os
from pathlib import Path

from bench.contender import Card
from bench.payload import body, number_of

SEGMENT = 2000
_MAKE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC


class Bare:
    """The bare calls through the os module."""

    def __init__(self, path: Path) -> None:
        for folder in ("pending", "leased", "completed"):
            (path / folder).mkdir(exist_ok=True)
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        segments = sorted(os.listdir(path / "pending"))
        self._pushed = sum(len(os.listdir(path / "pending" / name)) for name in segments)
        self._claimed = 0

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for number in range(count):
            self.push(body(number))

    def payload(self, number: int) -> bytes:
        """Return an argument for `push`."""
        return body(number)

    def push(self, payload: bytes) -> None:
        """Push a payload."""
        number, self._pushed = self._pushed, self._pushed + 1
        segment = f"pending/1763237639123-abcdef-{number // SEGMENT:06d}"
        if number % SEGMENT == 0:
            os.mkdir(segment, dir_fd=self._root)
        aside = f"{segment}/.{number:018d}"
        file = os.open(aside, _MAKE, 0o666, dir_fd=self._root)
        os.write(file, payload)
        os.close(file)
        self._move(aside, _name_pending(number))

    def claim(self) -> tuple[str, bytes]:
        """Claim a message; None if there is none."""
        number, self._claimed = self._claimed, self._claimed + 1
        leased = f"leased/{number:018d}~1~abcdefgh~mhzk3abc+goxc.json"
        self._move(_name_pending(number), leased)
        file = os.open(leased, _READ, dir_fd=self._root)
        payload = os.read(file, 4096)
        os.close(file)
        return leased, payload

    def done(self, claimed: tuple[str, bytes]) -> None:
        """Complete a claimed message."""
        self._move(claimed[0], f"completed/{claimed[0][7:34]}.json")

    def identity(self, claimed: tuple[str, bytes]) -> str:
        """Return which payload it is."""
        return number_of(claimed[1])

    def close(self) -> None:
        """Close the queue."""
        os.close(self._root)

    def _move(self, source: str, target: str) -> None:
        os.rename(source, target, src_dir_fd=self._root, dst_dir_fd=self._root)


def _name_pending(number: int) -> str:
    segment = f"pending/1763237639123-abcdef-{number // SEGMENT:06d}"
    return f"{segment}/{number:018d}~0~1763237639123.json"


BARE = Card(
    name="bare system calls (Python)",
    open=Bare,
    redelivers="",
    survives=False,
    syncs="kernel",
    api="os module",
)
