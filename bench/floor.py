"""Compile and run the bare system calls in C, in every round."""

import json
import os
import subprocess
from pathlib import Path

from bench.figures import CycleFigures

NAME = "bare system calls (C)"
SOURCE = Path(__file__).with_name("floor.c")


class Floor:
    """The compiled program. It has no state, so its position is kept here."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._next: dict[Path, tuple[int, int]] = {}

    def fill(self, path: Path, waiting: int) -> None:
        """Push `count` payloads before the measurement."""
        self._call("fill", str(path), str(waiting))
        self._next[path] = (0, waiting)

    def cycle(self, path: Path, cycles: int) -> CycleFigures:
        """Run cycles and return their figures."""
        first, last = self._next[path]
        answer = self._call("cycle", str(path), str(cycles), str(first), str(last))
        self._next[path] = (first + cycles, last + cycles)
        return CycleFigures(peak_bytes=0, **json.loads(answer))

    def _call(self, *arguments: str) -> str:
        command = [str(self._program), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compile_floor(folder: Path) -> Floor:
    """Compile floor.c and return the program."""
    program = folder / "floor"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return Floor(program)
