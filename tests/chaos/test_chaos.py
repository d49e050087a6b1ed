"""Eight workers, two thousand tasks, leases of half a second; kills and freezes at random.

Twenty seconds as part of all tests; HOLDFAST_CHAOS_SECONDS plays rounds with new seeds, half
of that time under each hazard of `hazards.py`. A failed round says its seed, though signals
make no two rounds alike. Nothing here is asserted about speed: a slow machine only makes
rounds longer.
"""

import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from chaos.books import Books
from chaos.cast import (
    LEASE_SECONDS,
    ChaosWorker,
    Place,
    push_killers,
    push_some,
    read_on,
)
from chaos.crew import Crew, Role
from chaos.hazards import HAZARDS, Hazard, NotPossibleHere
from fs import audit, scratch

WORKERS, PUSHERS, TASKS, KILLERS = 8, 2, 2_000, 3
PUSHED_BEFORE = 200
FAULT_SECONDS = 8.0
PATIENCE_SECONDS = 240.0
SECONDS = float(os.environ.get("HOLDFAST_CHAOS_SECONDS", "0"))
"""0: one round."""


class Round:
    """Workers work, pushers push, a reader reads; then all that hurts them stops."""

    def __init__(self, root: Path, hazard: Hazard, seed: int) -> None:
        self.root, self.hazard, self.random = root, hazard, Random(seed)
        self.crew = Crew(self.random)
        self.place = Place(root, hazard.prepare(root, self.begin), hazard)

    def begin(self, queue_root: Path) -> None:
        """Push the first tasks."""
        place = Place(self.root, queue_root, self.hazard)
        push_killers(place, KILLERS)
        push_some(place, self.random.getrandbits(32), PUSHED_BEFORE)

    def work(self, seed: int) -> None:
        self.hazard.join(Random(seed))
        ChaosWorker(self.place, seed).run()

    def read(self, seed: int) -> None:
        read_on(self.place)

    def push(self, seed: int) -> None:
        self.hazard.join(Random(seed))
        push_some(self.place, seed, TASKS // PUSHERS)

    def push_until_killed(self, seed: int) -> None:
        push_some(self.place, seed, TASKS)

    def play(self) -> Books:
        try:
            for role, number in self.cast():
                for _ in range(number):
                    self.crew.start(role)
            self.hurt()
            self.let_finish()
        finally:
            self.crew.thaw(everybody=True)
            self.crew.end()
        return Books(list(self.place.ledger.entries()), self.place.queue().folder)

    def cast(self) -> list[tuple[Role, int]]:
        return [
            (self.work, WORKERS),
            (self.read, 1),
            (self.push, PUSHERS),
            (self.push_until_killed, 1),
        ]

    def hurt(self) -> None:
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until:
            sleep(self.random.uniform(0.02, 0.1))
            self.crew.thaw()
            self.crew.replace_the_dead(self.work)
            self.hazard.strike(self.random)
            match self.random.random():
                case chance if chance < 0.45:
                    self.crew.kill_one(self.work)
                case chance if chance < 0.9:
                    self.crew.freeze_one(self.work, 2 * LEASE_SECONDS)
                case _:
                    self.crew.kill_one(self.push_until_killed)

    def let_finish(self) -> None:
        self.hazard.calm()
        self.crew.thaw(everybody=True)
        self.crew.kill_all(self.push_until_killed)
        assert self.crew.wait(self.push, PATIENCE_SECONDS), "a pusher does not end"
        give_up_at = monotonic() + PATIENCE_SECONDS
        while not self.is_done():
            assert monotonic() < give_up_at, f"unfinished: {self.place.queue().stats()}"
            self.crew.replace_the_dead(self.work)
            sleep(0.2)
        self.place.stop.touch()
        for role in (self.work, self.read):
            assert self.crew.wait(role, PATIENCE_SECONDS), "a process does not stop"

    def is_done(self) -> bool:
        stats = self.place.queue().stats()
        return stats.ready + stats.delayed + stats.leased == 0


def seeds(seconds: float = SECONDS) -> Iterator[int]:
    """One, or as many as there is time for."""
    until = monotonic() + seconds
    yield 1
    for seed in count(2):
        if monotonic() >= until:
            return
        yield seed


@pytest.mark.chaos
@pytest.mark.parametrize(
    "hazard", HAZARDS if SECONDS else HAZARDS[:1], ids=lambda hazard: hazard.name
)
def test_the_books_balance_whatever_is_killed_or_frozen(hazard: type[Hazard]) -> None:
    for seed in seeds(SECONDS / 2):
        folder = scratch.new_folder()
        status = play_in_child(folder, hazard, seed)
        if status == NOT_POSSIBLE:
            pytest.skip(f"{hazard.name} cannot be had here: the reason is printed above")
        assert status == 0, (
            f"{hazard.name}, seed {seed}: see stderr; each process says in "
            f"{folder}/ledger what it did"
        )
        shutil.rmtree(folder)


NOT_POSSIBLE = 77


def play_in_child(folder: Path, hazard: type[Hazard], seed: int) -> int:
    """Play a round in a process of its own, since a hazard may change its namespaces."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            play_round(folder, hazard, seed)
            status = 0
        except NotPossibleHere as refused:
            print(refused, flush=True)
            status = NOT_POSSIBLE
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)  # never back into pytest
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def play_round(folder: Path, hazard: type[Hazard], seed: int) -> None:
    started = monotonic()
    play = Round(folder, hazard(), seed)
    books = play.play()
    print(
        f"{hazard.name}, round {seed}: {monotonic() - started:.0f} s, "
        f"{play.crew.kills} killed, {play.crew.freezes} frozen, {books.summary()}",
        flush=True,
    )
    check(play, books)


def check(play: Round, books: Books) -> None:
    books.check()
    killers = [view for view in play.place.queue().dead_letters(10_000) if "killer" in view.id]
    assert len(killers) == KILLERS
    assert all("gave up after" in str(view.reason) for view in killers)
    assert play.crew.freezes < 20 or books.ids("refused"), "no zombie ever came back"
    play.place.queue().sweep(0)
    sleep(0.05)  # a stamp may be a little ahead of the clock
    play.place.queue().sweep(0)
    assert audit.residue(books.folder) == []
