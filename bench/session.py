"""One run of the bench, with its size, its folder and its rounds."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.arena import Arena
from bench.floor import Floor

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """The options and the folders of a run."""

    arena: Arena
    console: Console
    floor: Floor
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

    def interleaved(
        self, title: str, contenders: Sequence[T], *, rounds: int | None = None
    ) -> Iterator[T]:
        """Yield every contender once per round, in a different order each round."""
        rounds = rounds or self.rounds
        with self._progress() as progress:
            steps = progress.add_task(title, total=rounds * len(contenders), now="")
            for number in range(rounds):
                shift = number % len(contenders)
                for contender in (*contenders[shift:], *contenders[:shift]):
                    progress.update(steps, now=str(contender))
                    yield contender
                    progress.advance(steps)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
            console=self.console,
            transient=True,
        )


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a new interpreter, so that it inherits no memory or threads."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(function, *args, **kwargs).result()
