"""Four worker processes on a real SQS server, killed at random and replaced.

A few hundred messages are part of all tests; with HOLDFAST_CHAOS_SECONDS there are rounds of
five thousand with new seeds for that long. Speed is not asserted, because a slow machine only
makes rounds longer.
"""

import os
import shutil
from pathlib import Path
from random import Random
from time import monotonic, sleep

import boto3
import pytest

from chaos.event_log import Entry
from chaos.processes import ChaosProcesses
from chaos.sqs_accounting import SqsAccounting
from chaos.sqs_roles import LEASE_SECONDS, SqsWorker, SqsWorkspace, push_messages
from chaos.sqs_server import SqsServer, run_server
from chaos.test_chaos import SECONDS, iterate_seeds
from holdfast.aws.json_client.client import JsonClient
from support import memory_folder

WORKERS = 4
MESSAGES = 5_000 if SECONDS else 300
FAULT_SHARE = 0.9  # of the messages deleted; the rest must be able to finish
WAIT_TIMEOUT_SECONDS = 600.0


class SqsRound:
    """A round in which workers are killed while they handle messages."""

    def __init__(self, root: Path, server: SqsServer, seed: int) -> None:
        self.random = Random(seed)
        self.server = server
        self.workspace = SqsWorkspace(root, server, _create_queue(server))
        self.processes = ChaosProcesses(self.random)
        self.give_up_at = monotonic() + WAIT_TIMEOUT_SECONDS

    def work(self, seed: int) -> None:
        SqsWorker(self.workspace, seed).run()

    def push(self, seed: int) -> None:
        push_messages(self.workspace, seed, MESSAGES)

    def run(self) -> SqsAccounting:
        """Run the round and return its accounting."""
        try:
            self.processes.start(self.push)
            for _ in range(WORKERS):
                self.processes.start(self.work)
            self.inject_faults()
            self.wait_until_finished()
        finally:
            self.processes.end()
        return SqsAccounting(
            list(self.workspace.event_log.entries()), self.server.read_totals()
        )

    def inject_faults(self) -> None:
        while self.server.read_counts().deleted < FAULT_SHARE * MESSAGES:
            self.check_time()
            sleep(self.random.uniform(0.1, 0.8))
            self.kill_random_worker()

    def kill_random_worker(self) -> None:
        """Kill a worker and record it afterwards, because it may have been alive until then."""
        before = set(self.processes.roles)
        self.processes.kill_random(self.work)
        [killed] = before - set(self.processes.roles)
        self.workspace.event_log.add(Entry("killed", worker=str(killed), at=monotonic()))

    def wait_until_finished(self) -> None:
        while not self.is_done():
            self.check_time()
            sleep(0.2)
        self.workspace.stop.touch()
        assert self.processes.wait(self.push, WAIT_TIMEOUT_SECONDS), "the pusher does not end"
        assert self.processes.wait(self.work, WAIT_TIMEOUT_SECONDS), "a worker does not stop"

    def is_done(self) -> bool:
        counts = self.server.read_counts()
        return counts.sent >= MESSAGES and counts.waiting == 0

    def check_time(self) -> None:
        assert monotonic() < self.give_up_at, f"unfinished: {self.workspace.queue().stats()}"


def _create_queue(server: SqsServer) -> str:
    client = boto3.client("sqs", endpoint_url=server.endpoint)
    attributes = {"VisibilityTimeout": str(int(LEASE_SECONDS))}
    response = client.create_queue(QueueName="soak", Attributes=attributes)
    return str(response["QueueUrl"])


@pytest.fixture(autouse=True)
def _without_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "soak")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def test_every_message_is_completed_and_deleted_once_whichever_worker_is_killed() -> None:
    for seed in iterate_seeds():
        folder = memory_folder.new_folder()
        started = monotonic()
        try:
            with run_server() as server:
                chaos_round = SqsRound(folder, server, seed)
                accounting = chaos_round.run()
                client = chaos_round.workspace.queue()._client.retrying_client
                assert isinstance(client, JsonClient)  # as that of the workers
                stats = chaos_round.workspace.queue().stats()
            print(
                f"SQS round {seed}: {monotonic() - started:.0f} s, "
                f"{chaos_round.processes.kills} killed, {accounting.format_summary()}",
                flush=True,
            )
            accounting.check()
            assert (stats.ready, stats.delayed, stats.leased, stats.failed) == (0, 0, 0, 0)
            assert accounting.count_taken_over(), "no message was ever taken over"
        except BaseException as error:
            error.add_note(f"round with seed {seed}; the events are in {folder}/events")
            raise
        shutil.rmtree(folder)
