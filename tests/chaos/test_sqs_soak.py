"""Four worker processes on a real SQS server, killed at random and replaced.

A few hundred messages as part of all tests; with HOLDFAST_CHAOS_SECONDS rounds of five
thousand with new seeds for that long. Nothing here is asserted about speed: a slow machine
only makes rounds longer.
"""

import os
import shutil
from pathlib import Path
from random import Random
from time import monotonic, sleep

import boto3
import pytest

from chaos.crew import Crew
from chaos.ledger import Entry
from chaos.sqs_books import SqsBooks
from chaos.sqs_cast import LEASE_SECONDS, SqsPlace, SqsWorker, push_all
from chaos.sqs_server import Server, serving
from chaos.test_chaos import SECONDS, seeds
from fs import scratch

WORKERS = 4
MESSAGES = 5_000 if SECONDS else 300
KILLING_ENDS_AT = 0.9  # of the messages deleted: what is left must be able to finish
PATIENCE_SECONDS = 600.0


class SqsRound:
    def __init__(self, root: Path, server: Server, seed: int) -> None:
        self.random = Random(seed)
        self.server = server
        self.place = SqsPlace(root, server, _new_queue(server))
        self.crew = Crew(self.random)
        self.give_up_at = monotonic() + PATIENCE_SECONDS

    def work(self, seed: int) -> None:
        SqsWorker(self.place, seed).run()

    def push(self, seed: int) -> None:
        push_all(self.place, seed, MESSAGES)

    def play(self) -> SqsBooks:
        try:
            self.crew.start(self.push)
            for _ in range(WORKERS):
                self.crew.start(self.work)
            self.hurt()
            self.let_finish()
        finally:
            self.crew.end()
        return SqsBooks(list(self.place.ledger.entries()), self.server.books())

    def hurt(self) -> None:
        while self.server.counts().deleted < KILLING_ENDS_AT * MESSAGES:
            self.check_time()
            sleep(self.random.uniform(0.1, 0.8))
            self.kill_one_worker()

    def kill_one_worker(self) -> None:
        """The ledger is told afterwards: until then it may have been alive."""
        before = set(self.crew.roles)
        self.crew.kill_one(self.work)
        [killed] = before - set(self.crew.roles)
        self.place.ledger.add(Entry("killed", worker=str(killed), at=monotonic()))

    def let_finish(self) -> None:
        while not self.is_done():
            self.check_time()
            sleep(0.2)
        self.place.stop.touch()
        assert self.crew.wait(self.push, PATIENCE_SECONDS), "the pusher does not end"
        assert self.crew.wait(self.work, PATIENCE_SECONDS), "a worker does not stop"

    def is_done(self) -> bool:
        counts = self.server.counts()
        return counts.sent >= MESSAGES and counts.waiting == 0

    def check_time(self) -> None:
        assert monotonic() < self.give_up_at, f"unfinished: {self.place.queue().stats()}"


def _new_queue(server: Server) -> str:
    client = boto3.client("sqs", endpoint_url=server.endpoint)
    attributes = {"VisibilityTimeout": str(int(LEASE_SECONDS))}
    answer = client.create_queue(QueueName="soak", Attributes=attributes)
    return str(answer["QueueUrl"])


@pytest.fixture(autouse=True)
def _no_amazon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "soak")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.mark.chaos
def test_every_message_is_worked_to_its_end_and_deleted_once_whoever_is_killed() -> None:
    for seed in seeds():
        folder = scratch.new_folder()
        started = monotonic()
        try:
            with serving() as server:
                play = SqsRound(folder, server, seed)
                books = play.play()
                stats = play.place.queue().stats()
            print(
                f"SQS round {seed}: {monotonic() - started:.0f} s, {play.crew.kills} killed, "
                f"{books.summary()}",
                flush=True,
            )
            books.check()
            assert (stats.ready, stats.delayed, stats.leased, stats.failed) == (0, 0, 0, 0)
            assert books.taken_over(), "no message ever changed hands"
        except BaseException as error:
            error.add_note(f"round with seed {seed}; who did what is told in {folder}/ledger")
            raise
        shutil.rmtree(folder)
