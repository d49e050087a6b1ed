"""Four worker processes on a real SQS server, killed at random and replaced.

A few hundred messages are part of all tests; with HOLDFAST_CHAOS_SECONDS there are rounds of
five thousand with new seeds for that long. Speed is not asserted, because a slow machine only
makes rounds longer.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep

import boto3
import pytest

from chaos.events import Entry
from chaos.rounds import SECONDS, ChaosProcesses, repeat_rounds, wait_until
from chaos.sqs_roles import (
    LEASE_SECONDS,
    SqsAccounting,
    SqsWorker,
    SqsWorkspace,
    push_messages,
)
from chaos.sqs_server import serve
from holdfast.aws.json_client.client import JsonClient

WORKERS = 4
MESSAGES = 5_000 if SECONDS else 200
FAULT_SHARE = 0.9  # of the messages deleted; the rest must be able to finish
WAIT_TIMEOUT_SECONDS = 600.0


class SqsRound:
    """A round in which workers are killed while they handle messages."""

    def __init__(self, root: Path, listening: socket.socket, seed: int) -> None:
        self.random, self.listening = Random(seed), listening
        self.endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.workspace = SqsWorkspace(root, f"{self.endpoint}/000000000000/soak")

    def serve(self, seed: int) -> None:
        serve(self.listening, self.workspace.event_log)

    def work(self, seed: int) -> None:
        SqsWorker(self.workspace, seed).run()

    def push(self, seed: int) -> None:
        push_messages(self.workspace, seed, MESSAGES)

    def run(self) -> str:
        with ChaosProcesses(self.random) as processes:
            processes.start(self.serve)
            _create_queue(self.endpoint)
            processes.start(self.push)
            processes.start(self.work, WORKERS)
            self.wait(self.is_nearly_done, between=lambda: self.kill_worker(processes))
            self.wait(self.is_done)
            self.workspace.stop.touch()
            for role in (self.push, self.work):
                processes.wait(role, WAIT_TIMEOUT_SECONDS)
            queue = self.workspace.queue()
            assert isinstance(queue._client.retrying_client, JsonClient)  # as in the workers
            stats = queue.stats()
            assert (stats.ready, stats.delayed, stats.leased, stats.failed) == (0, 0, 0, 0)
        accounting = SqsAccounting(list(self.workspace.event_log.entries()))
        accounting.check()
        assert accounting.count_taken_over(), "no message was ever taken over"
        return f"{processes.kills} killed, {accounting.format_summary()}"

    def kill_worker(self, processes: ChaosProcesses) -> None:
        """Kill a worker and record it afterwards, because it may have been alive until then."""
        sleep(self.random.uniform(0.1, 0.5))
        killed = processes.kill_random(self.work)
        self.workspace.event_log.add(Entry("killed", worker=str(killed), at=monotonic()))

    def is_nearly_done(self) -> bool:
        return self.workspace.event_log.count("deleted") >= FAULT_SHARE * MESSAGES

    def is_done(self) -> bool:
        is_sent = self.workspace.event_log.count("sent") >= MESSAGES
        return is_sent and self.workspace.count_waiting() == 0

    def wait(
        self, condition: Callable[[], bool], between: Callable[[], None] = lambda: None
    ) -> None:
        wait_until(
            condition,
            WAIT_TIMEOUT_SECONDS,
            lambda: f"unfinished: {self.workspace.queue().stats()}",
            between=between,
        )


def _create_queue(endpoint: str) -> None:
    client = boto3.client("sqs", endpoint_url=endpoint)
    attributes = {"VisibilityTimeout": str(int(LEASE_SECONDS))}
    client.create_queue(QueueName="soak", Attributes=attributes)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "soak")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def test_every_message_is_completed_and_deleted_once_whichever_worker_is_killed() -> None:
    repeat_rounds("SQS", open_round)


@contextmanager
def open_round(folder: Path, seed: int) -> Iterator[SqsRound]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield SqsRound(folder, listening, seed)
