"""Twenty conversations, held by stagers and workers that are killed and frozen.

I-MS-1…6; MS-01…09, 14, 20, 21. A few seconds as part of all tests; with
HOLDFAST_CHAOS_SECONDS rounds with new seeds for that long. The sender cannot say what it
sent half the time, so some batches are parked: each of them must have been in doubt. Nothing
here is asserted about speed: a slow machine only makes rounds longer.
"""

import shutil
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from chaos.chat_books import ChatBooks
from chaos.chat_cast import (
    LEASE_SECONDS,
    Place,
    missing_of,
    stage_on,
    sweep,
    work_on,
)
from chaos.crew import Crew
from chaos.test_chaos import SECONDS, seeds
from fs import scratch

WORKERS, STAGERS = (4, 3) if SECONDS else (3, 2)
MESSAGES = 1_000 if SECONDS else 120
FAULT_SECONDS = 20.0 if SECONDS else 3.0
PATIENCE_SECONDS = 180.0


class ChatRound:
    """Stagers stage, workers answer, a monkey hurts; then all that hurts stops."""

    def __init__(self, root: Path, seed: int) -> None:
        self.place = Place(root, MESSAGES, FAULT_SECONDS * STAGERS / MESSAGES)
        self.random = Random(seed)
        self.crew = Crew(self.random)

    def work(self, seed: int) -> None:
        work_on(self.place)

    def stage(self, seed: int) -> None:
        stage_on(self.place, seed)

    def play(self) -> ChatBooks:
        self.place.store().close()
        try:
            for role, number in ((self.work, WORKERS), (self.stage, STAGERS)):
                for _ in range(number):
                    self.crew.start(role)
            self.hurt()
            self.let_finish()
        finally:
            self.crew.thaw(everybody=True)
            self.crew.end()
        return ChatBooks(self.place).read()

    def hurt(self) -> None:
        """While messages come: harm is for those who are at work."""
        until = monotonic() + FAULT_SECONDS
        while monotonic() < until and missing_of(self.place):
            sleep(self.random.uniform(0.02, 0.1))
            self.crew.thaw()
            match self.random.random():
                case chance if chance < 0.45:
                    self.crew.kill_one(self.work)
                case chance if chance < 0.85:
                    self.crew.freeze_one(self.work, 2.5 * LEASE_SECONDS)
                case _:
                    self.crew.kill_one(self.stage)

    def let_finish(self) -> None:
        self.crew.thaw(everybody=True)
        assert self.crew.wait(self.stage, PATIENCE_SECONDS), "a stager does not end"
        give_up_at = monotonic() + PATIENCE_SECONDS
        while not self.is_quiet():
            assert monotonic() < give_up_at, ChatBooks(self.place).read().summary()
            sweep(self.place)
            sleep(0.1)
        self.place.stop.touch()
        assert self.crew.wait(self.work, PATIENCE_SECONDS), "a worker does not stop"

    def is_quiet(self) -> bool:
        queue = self.place.queue()
        stats = queue.stats()
        queue.close()
        with self.place.store() as store:
            waiting = any(True for _ in store.waiting())
        return not waiting and stats.ready + stats.delayed + stats.leased == 0


@pytest.mark.chaos
def test_every_message_is_answered_once_or_parked_in_doubt_whoever_dies() -> None:
    for seed in seeds():
        folder = scratch.new_folder()
        started = monotonic()
        try:
            play = ChatRound(folder, seed)
            books = play.play()
            print(
                f"chat round {seed}: {monotonic() - started:.0f} s, {play.crew.kills} killed, "
                f"{play.crew.freezes} frozen; {books.summary()}",
                flush=True,
            )
            books.check()
            assert play.place.queue().stats().failed == 0
        except BaseException as error:
            error.add_note(f"round with seed {seed}; ledgers and store are in {folder}")
            raise
        shutil.rmtree(folder)
