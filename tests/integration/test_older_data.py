"""Data that an older version wrote is read: files, SQLite, DynamoDB and SQS.

tests/data/before_the_rooms.tar.gz was written by the last version whose modules were sorted by
layer: queues with a message in each state, jobs and conversations in the middle of their work.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from contracts.conversations.support import make_turn
from holdfast import (
    AnyMessage,
    QueueManager,
    SQSQueue,
    open_conversations,
    open_jobs,
    open_queue,
)
from holdfast.aws import DynamoDBConversations, DynamoDBJobs
from holdfast.chat import ConversationKey, ConversationStore
from holdfast.chat.dynamodb.tables import define_tables as define_chat_tables
from holdfast.chat.dynamodb.tables import tables_from_prefix
from holdfast.exports.dynamodb.tables import JobTables
from holdfast.exports.dynamodb.tables import define_tables as define_job_tables
from holdfast.jobs import ExportTask, JobStateRepository, TaskResult
from holdfast.testing import ManualClock, SimulatedSqs
from support.paths import ROOT

ARCHIVE = ROOT / "tests/data/before_the_rooms.tar.gz"
CUSTOMER = ConversationKey("whatsapp:+4915700000001", "chat")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    return tmp_path


@pytest.mark.parametrize("url", ["{}/files/acme/enrich", "sqlite:{}/work.db/acme/enrich"])
def test_messages_in_every_state_are_read_and_finished(folder: Path, url: str) -> None:
    # The lease in the folder is of a machine that is not this one, so it is watched for its
    # whole length before it is taken over.
    clock = ManualClock(auto_advance=True)
    with open_queue(url.format(folder), dedupe=True, max_attempts=2, clock=clock) as queue:
        assert queue.stats().completed == 1
        if "results" in queue.capabilities:
            assert queue.load_result("completed") == {"total": 7}
        [failed] = queue.dead_letters()
        assert (failed.id, failed.reason) == ("failed", "the reason of the failure")
        queue.push(AnyMessage(id="completed"))  # it was pushed before
        assert queue.redrive("failed") == 1
        done = dict(take_all(queue))
        assert done.keys() == {
            "leased", "ready", "delayed", "failed", "batch-0", "batch-1", "batch-2"
        }  # fmt: skip
        assert done["ready"].text == "ünï ☃"
        assert done["leased"].attempts == 2
        assert queue.stats().completed == 8


def take_all(queue: QueueManager[AnyMessage]) -> Iterator[tuple[str, Any]]:
    """Yield and complete every message that is due within two minutes."""
    while polled := queue.poll(10, wait_seconds=120.0):
        for message in polled:
            if message.id == "leased":
                assert queue.load_checkpoint(message) == {"page": 3}
            yield message.id, message
            queue.ack(message)


def check_jobs(jobs: JobStateRepository) -> None:
    """Check the jobs, and go on with those that are not finished."""
    running = jobs.find_by_id("running")
    assert running is not None
    counts = (running.state.completed_tasks, running.state.failed_tasks)
    assert (counts, running.state.total_tasks) == ((1, 1), 3)
    assert running.task_token is not None
    [left] = [task for task in jobs.tasks("running", limit=10) if is_pending(task)]
    assert jobs.record_results("running", [TaskResult("running", left.task_id, True, 7)]) == 1
    ended = jobs.claim_outcome("running")
    assert ended is not None
    assert (ended.callback.status, ended.callback.state.value) == ("FAILED", "pending")
    owing = jobs.begin_callback("owes-a-callback", again_after_seconds=60.0)
    assert owing is not None
    assert owing.callback.state.value == "pending"
    finished = jobs.find_by_id("finished")
    assert finished is not None
    assert (finished.callback.status, finished.state.completed_tasks) == ("COMPLETED", 2)


def is_pending(task: ExportTask) -> bool:
    return task.status.value == "PENDING"


def check_conversations(store: ConversationStore) -> None:
    """Check the conversations, and take over the one whose worker died."""
    history = [message.body for message in store.history(CUSTOMER, limit=10)]
    assert history == ["asked m1", "answer reply to m1"]
    assert store.processed(CUSTOMER, {"m1", "m2", "m3"}) == {"m1", "m2"}
    assert [row.message_sid for row in store.staged("chat")] == ["m3"]
    later = 1_800_001_000.0
    taken = store.acquire(
        CUSTOMER, owner="new", trigger_id="t", now=later, expires_at=later + 60.0
    )
    assert taken.conversation.outbox is not None
    assert taken.conversation.outbox.answer.text == "Tomorrow at nine. 👍"
    answered = make_turn("m3", reply="r3")
    store.finish(taken.grant, answered, now=later, remember_until=later)
    assert [message.seq for message in store.history(CUSTOMER)] == [1, 2, 3, 4]
    assert [message.seq for message in store.get(CUSTOMER).messages] == [3, 4]
    assert store.staged("chat") == []
    [parked] = store.parked()
    assert parked.reason == "the number does not exist"
    assert parked.sids == ("m9",)


def test_stores_in_sqlite_files_are_read_and_go_on(folder: Path) -> None:
    with open_jobs(f"sqlite:{folder}/jobs.db") as jobs:
        check_jobs(jobs)
    with open_conversations(f"sqlite:{folder}/chat.db") as store:
        check_conversations(store)


def test_items_in_dynamodb_are_read_and_go_on(folder: Path) -> None:
    rows = json.loads((folder / "dynamodb.json").read_text())
    with mock_aws():
        client = boto3.client("dynamodb", region_name="us-east-1")
        for table in [
            *define_job_tables(JobTables()),
            *define_chat_tables(tables_from_prefix()),
        ]:
            client.create_table(**table)
        for table, items in rows.items():
            for item in items:
                client.put_item(TableName=table, Item=item)
        with DynamoDBJobs(client=client, clock=ManualClock()) as jobs:
            check_jobs(jobs)
        with DynamoDBConversations(client=client, clock=ManualClock()) as store:
            check_conversations(store)


def test_messages_of_sqs_are_read(folder: Path, clock: ManualClock) -> None:
    sqs = SimulatedSqs(clock)
    client = sqs.client()
    for name, messages in json.loads((folder / "sqs.json").read_text()).items():
        url = client.create_queue(QueueName=name)["QueueUrl"]
        for message in messages:
            client.send_message(QueueUrl=url, **message)
    with SQSQueue("enrich", client=client, clock=clock, dead_letters="enrich-dlq") as queue:
        [failed] = queue.dead_letters()
        assert (failed.id, failed.reason) == ("failed", "the reason of the failure")
        [ready] = queue.poll(1)
        assert (ready.id, ready.text) == ("ready", "ünï ☃")
        queue.ack(ready)
