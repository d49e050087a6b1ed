"""Compile and run the bare calls in C, of the filesystem and of SQLite, in every round."""

import json
import os
import subprocess
from pathlib import Path

from bench.contender import Card
from bench.figures import CycleFigures
from bench.holdfast import SQLITE_FILE
from bench.raw_sqlite import ACK, CLAIM_MANY, CLAIM_ONE, PUSH, SETTINGS

NAME = "bare system calls (C)"
SOURCE = Path(__file__).with_name("floor.c")
SQLITE_SOURCE = Path(__file__).with_name("sqlite_floor.c")


class Floor:
    """The compiled program. It has no state, so its position is kept here."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._next: dict[Path, tuple[int, int]] = {}

    def fill(self, path: Path, waiting: int) -> None:
        """Push `count` payloads before the measurement."""
        _call(self._program, "fill", str(path), str(waiting))
        self._next[path] = (0, waiting)

    def cycle(self, path: Path, cycles: int) -> CycleFigures:
        """Run cycles and return their figures."""
        first, last = self._next[path]
        figures = _call(self._program, "cycle", str(path), str(cycles), str(first), str(last))
        self._next[path] = (first + cycles, last + cycles)
        return CycleFigures(**json.loads(figures))


class SQLiteFloor:
    """The compiled program that runs the statements of raw SQLite in a database of its card."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def cycle(self, raw: Card, path: Path, messages: int) -> CycleFigures:
        """Run the cycles of that card and return their figures."""
        claim = CLAIM_ONE if raw.batch == 1 else CLAIM_MANY
        size = str(messages), str(raw.batch)
        statements = SETTINGS.format(synchronous="NORMAL"), PUSH, claim, ACK
        figures = _call(self._program, str(path / SQLITE_FILE), *size, *statements)
        return CycleFigures(**json.loads(figures))


def _call(program: Path, *arguments: str) -> str:
    command = [str(program), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compile_floor(folder: Path) -> Floor:
    """Compile floor.c and return the program."""
    program = folder / "floor"
    subprocess.run([_compiler(), "-O2", "-o", str(program), str(SOURCE)], check=True)
    return Floor(program)


def compile_sqlite_floor(folder: Path) -> SQLiteFloor | None:
    """Compile sqlite_floor.c. Returns None if SQLite's header or library is missing."""
    program = folder / "sqlite_floor"
    command = [_compiler(), "-O2", "-o", str(program), str(SQLITE_SOURCE), "-lsqlite3"]
    compiled = subprocess.run(command, capture_output=True, check=False)
    return SQLiteFloor(program) if compiled.returncode == 0 else None


def _compiler() -> str:
    return os.environ.get("CC", "cc")
