"""One run of the bench: its size, its folder, its rounds, and what they measured."""

import multiprocessing
import resource
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from rich.progress import track
from tools import listeners

from bench.arena import Arena

MIB = 1024 * 1024
P = ParamSpec("P")
T = TypeVar("T")

Figures = Mapping[str, float]
"""What one measurement found, by the name of the figure."""


class Measured:
    """The figures of every round, by contender."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[Figures]] = defaultdict(list)

    def read(self, name: str, figure: str = "rate") -> list[float]:
        """Return a figure of each round."""
        return [figures[figure] for figures in self.rounds[name]]

    def median(self, name: str, figure: str = "rate") -> float:
        """Return the median of a figure."""
        return median(self.read(name, figure))

    def sum(self, name: str, figure: str) -> float:
        """Return the sum of a figure over all rounds."""
        return sum(self.read(name, figure))

    def ratio(self, name: str, rival: str, figure: str = "rate") -> float:
        """Return the median of the rounds' ratios, because a slow round slows both sides."""
        pairs = zip(self.read(name, figure), self.read(rival, figure), strict=True)
        return median(a / b for a, b in pairs)

    def find_best(self, names: Sequence[str], figure: str = "rate") -> str:
        """Return the contender with the highest median."""
        return max(names, key=lambda name: self.median(name, figure))

    def sort(self, figure: str = "rate") -> Sequence[str]:
        """Return the contenders, the highest median first."""
        return sorted(self.rounds, key=lambda name: -self.median(name, figure))

    def make_rows(
        self, *cells: tuple[str, str], names: Sequence[str] | None = None
    ) -> list[Sequence[str]]:
        """Return a row for each contender, with the medians of figures in their formats."""
        return [
            [name, *(form.format(self.median(name, figure)) for figure, form in cells)]
            for name in names or self.rounds
        ]


@dataclass(frozen=True, slots=True)
class Session:
    """The options and the folders of a run."""

    arena: Arena
    console: Console
    scratch: Path  # outside the measured folders
    rounds: int
    quick: bool

    @property
    def max_seconds(self) -> float:
        """Return the time after which the measurement of a slow contender ends."""
        return 1.0 if self.quick else 3.0

    def size(self, full: int, quick: int) -> int:
        """Return the full size, or the small one with --quick."""
        return quick if self.quick else full

    def measure(
        self,
        title: str,
        contenders: Mapping[str, Callable[[], Figures]],
        *,
        rounds: int | None = None,
    ) -> Measured:
        """Measure every contender once per round, in a different order each round."""
        measured, names = Measured(), list(contenders)
        steps = [
            name
            for number in range(rounds or self.rounds)
            for name in names[number % len(names) :] + names[: number % len(names)]
        ]
        for name in track(steps, title, console=self.console, transient=True):
            measured.rounds[name].append(contenders[name]())
        return measured


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a new interpreter, so that it inherits no memory or threads."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(function, *args, **kwargs).result()


@contextmanager
def running(target: Callable[..., None], *args: Any, processes: int = 1) -> Iterator[None]:
    """Run a function in several processes until the block is left, and kill them then."""
    spawn = multiprocessing.get_context("spawn")
    started = [spawn.Process(target=target, args=args, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


@contextmanager
def serving(target: Callable[[Connection], None]) -> Iterator[str]:
    """Run a server until the block is left, and yield the address that it sends."""
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with running(target, sender):
        assert receiver.poll(60), "the server did not start"
        address = receiver.recv()
        listeners.assert_loopback_only()
        yield address


def repeat(step: Callable[[int], object], count: int, max_seconds: float) -> tuple[int, float]:
    """Repeat a step within the time, and return how often it was done, and the seconds."""
    began = at = perf_counter()
    done = 0
    while done < count and at - began < max_seconds:
        step(done)
        done += 1
        at = perf_counter()
    return done, at - began


def read_memory_bytes(field: str = "VmRSS") -> int:
    """Return this process's memory now (VmRSS) or its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """Return the CPU time of this process, or of its children that ended."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime
