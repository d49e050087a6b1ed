"""Export services on one queue, killed, frozen and cut off; every job is answered once.

JB-01…16, 28, 33, 46; I-JB-1…5, 12, 13; R004-066…081. A few jobs as part of all tests; with
HOLDFAST_CHAOS_SECONDS rounds of many with new seeds for that long. Nothing here is asserted
about speed: a slow machine only makes rounds longer, and an execution that really timed out
because nobody could beat for it is counted, and judged as such.
"""

import shutil
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from chaos.export_books import ExportBooks, Onlooker
from chaos.export_cast import LEASE_SECONDS, Clients, Place, Services
from chaos.export_server import World, serving
from chaos.test_chaos import SECONDS, seeds
from fs import scratch

SERVICES = 3 if SECONDS else 2
JOBS = 60 if SECONDS else 8
FAULT_SECONDS = 25.0 if SECONDS else 3.5
PATIENCE_SECONDS = 180.0
NUDGE_SECONDS = 0.25


class ExportRound:
    """Services work, clients ask, a monkey hurts; then all that hurts stops."""

    def __init__(self, root: Path, world: World, seed: int) -> None:
        self.random = Random(seed)
        self.place = Place(root, world)
        self.services = Services(self.place, self.random, SERVICES)
        self.clients = Clients(self.place, self.random)
        self.onlooker = Onlooker(self.place, self.clients.orders)

    def play(self) -> ExportBooks:
        try:
            self.services.start_all()
            self.begin()
            self.hurt()
            self.place.world.calm()
            self.services.thaw(everybody=True)
            books = self.let_finish()
            self.services.stop(PATIENCE_SECONDS)
        finally:
            self.services.thaw(everybody=True)
            self.services.end()
        return books.read()

    def begin(self) -> None:
        """Harm is for those who are at work."""
        self.clients.ask()
        give_up_at = monotonic() + PATIENCE_SECONDS
        while not self.place.world.books()["calls"]:
            assert monotonic() < give_up_at, "no service came to work"
            self.services.check_alive()
            sleep(0.05)

    def hurt(self) -> None:
        """Jobs come while services die: over the whole time, in no rhythm."""
        self.services.kill_one()  # one dies in any case, however short this is
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until or len(self.clients.orders) < JOBS:
            asked = JOBS * (1 - (until - monotonic()) / FAULT_SECONDS)
            while len(self.clients.orders) < min(JOBS, asked + 1):
                self.clients.ask()
            sleep(self.random.uniform(0, 2 * NUDGE_SECONDS))
            self.services.thaw()
            self.services.check_alive()
            self.onlooker.look()
            self.do_harm()

    def do_harm(self) -> None:
        match self.random.random():
            case chance if chance < 0.15 and self.may_kill():
                self.services.kill_one()
            case chance if chance < 0.30:
                self.services.freeze_one(self.random.uniform(0.5, 2.5) * LEASE_SECONDS)
            case chance if chance < 0.70:
                self.services.kill_a_worker()

    def may_kill(self) -> bool:
        """An answer that was left half way is taken up after twenty seconds: `make chaos`
        has that time, the run of all tests has not."""
        return bool(SECONDS) or not self.onlooker.somebody_answers()

    def let_finish(self) -> ExportBooks:
        books = ExportBooks(self.place, self.clients.orders)
        give_up_at = monotonic() + PATIENCE_SECONDS
        while self.clients.waiting() or not books.quiet():
            assert monotonic() < give_up_at, f"unfinished: {books.summary()}"
            self.services.check_alive()
            self.onlooker.look()
            sleep(0.1)
        return books

    def summary(self) -> str:
        services, clients = self.services, self.clients
        return (
            f"{services.kills} services and {services.worker_kills} workers killed, "
            f"{services.freezes} frozen; {clients.repeated} messages sent twice, "
            f"{clients.again} jobs asked for again"
        )


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.chaos
def test_every_job_is_counted_and_answered_once_whoever_dies() -> None:
    for seed in seeds():
        folder = scratch.new_folder()
        started = monotonic()
        try:
            with serving(seed) as world:
                play = ExportRound(folder, world, seed)
                books = play.play()
            print(
                f"export round {seed}: {monotonic() - started:.0f} s, {play.summary()}; "
                f"{books.summary()}; looked {play.onlooker.looks} times",
                flush=True,
            )
            books.check()
            assert play.clients.buried() == 0
        except BaseException as error:
            error.add_note(f"round with seed {seed}; the services' logs are in {folder}/logs")
            raise
        shutil.rmtree(folder)
