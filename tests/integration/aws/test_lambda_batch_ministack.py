"""sqs_batch in a real function: Lambda's Python runtime, behind an event source mapping."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from holdfast import QueueMessage
from support.waiting import wait_until

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

SECONDS = 90  # for what functions do
FUNCTION = """
import os
import time

from holdfast import Context, QueueMessage, Reject
from holdfast.lambdas import sqs_batch


class Task(QueueMessage):
    n: int
    seconds: float = 0.0
    fails: int = 0       # so many attempts
    rejected: bool = False


def note(*words):
    line = " ".join(map(str, words)) + "\\n"
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, line.encode())
    os.close(ledger)


def handle(task: Task, ctx: Context):
    note("started", task.id, ctx.attempt)
    time.sleep(task.seconds)
    if ctx.attempt <= task.fails:
        raise RuntimeError("not yet")
    if task.rejected:
        return Reject("not wanted")
    note("done", task.id, ctx.attempt)


lambda_handler = sqs_batch(handle, reserve_seconds=2)
"""


class Task(QueueMessage):
    n: int
    seconds: float = 0.0
    fails: int = 0
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """A queue and its function."""

    sqs: Any
    url: str
    ledger: Path

    def send(self, *tasks: Task, group: str | None = None) -> None:
        for task in tasks:
            self.send_text(task.model_dump_json(), group)

    def send_text(self, body: str, group: str | None = None) -> None:
        fifo = {"MessageGroupId": group, "MessageDeduplicationId": uuid4().hex}
        self.sqs.send_message(QueueUrl=self.url, MessageBody=body, **(fifo if group else {}))

    def noted(self, word: str) -> list[str]:
        """Return the ids of records that were started or done, in order."""
        if not self.ledger.exists():
            return []
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        return [id for label, id, _ in lines if label == word]

    def left(self, url: str | None = None) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.sqs.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)

    def dead(self) -> int:
        name, dot, fifo = self.url.rpartition("/")[2].partition(".")
        answer = self.sqs.get_queue_url(QueueName=f"{name}-dead{dot}{fifo}")
        return self.left(answer["QueueUrl"])


Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(ministack: "Ministack", tmp_path: Path) -> Deploy:
    def deployed(*, fifo: bool = False, visibility: int = 30, **env: str) -> Deployment:
        name = f"batch-{uuid4().hex[:8]}"
        ledger = tmp_path / name
        url, arn = _queue(ministack, name, fifo, visibility)
        env = {"LEDGER": str(ledger), **env}
        ministack.create_function(name, "function.lambda_handler", env, FUNCTION)
        ministack.map_event_source(name, arn)
        return Deployment(ministack.client("sqs"), url, ledger)

    return deployed


def _queue(ministack: "Ministack", name: str, fifo: bool, visibility: int) -> tuple[str, str]:
    sqs = ministack.client("sqs")
    attributes = {"VisibilityTimeout": str(visibility)}
    if fifo:
        name, attributes = f"{name}.fifo", {**attributes, "FifoQueue": "true"}
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return url, answer["Attributes"]["QueueArn"]


def test_every_message_ends_done_or_as_a_dead_letter_and_failures_are_retried(
    deploy: Deploy,
) -> None:
    deployment = deploy()
    tasks = [Task(id=f"t{n}", n=n, fails=1 if n % 4 == 0 else 0) for n in range(24)]
    tasks += [Task(id="reject", n=100, rejected=True)]
    deployment.send(*tasks)
    deployment.send_text("no JSON")
    wait_until(lambda: deployment.left() == 0, SECONDS)
    done = deployment.noted("done")
    assert sorted(done) == sorted(task.id for task in tasks if not task.rejected)
    started = Counter(deployment.noted("started"))
    assert {id for id, times in started.items() if times == 2} == {
        f"t{n}" for n in range(0, 24, 4)
    }
    assert deployment.dead() == 2


@pytest.mark.nightly
def test_records_that_wait_in_the_batch_are_not_delivered_a_second_time(deploy: Deploy) -> None:
    """Four records take 2.5 s each; the visibility is 4 s, and another function is idle."""
    deployment = deploy(visibility=4, HOLDFAST_LEASE_SECONDS="9")
    deployment.send(Task(id="warm-up", n=0))
    wait_until(lambda: deployment.left() == 0, SECONDS)
    deployment.send(*(Task(id=f"t{n}", n=n, seconds=2.5) for n in range(4)))
    wait_until(lambda: deployment.left() == 0, SECONDS)
    started = Counter(deployment.noted("started"))
    assert started == {"warm-up": 1, "t0": 1, "t1": 1, "t2": 1, "t3": 1}


@pytest.mark.nightly
def test_a_fifo_group_keeps_its_order_over_a_failure(deploy: Deploy) -> None:
    deployment = deploy(fifo=True)
    for group in ("a", "b"):
        tasks = [Task(id=f"{group}{n}", n=n, fails=1 if n == 2 else 0) for n in range(6)]
        deployment.send(*tasks, group=group)
    wait_until(lambda: deployment.left() == 0, SECONDS)
    done = deployment.noted("done")
    for group in ("a", "b"):
        assert [id for id in done if id[0] == group] == [f"{group}{n}" for n in range(6)]
    assert Counter(deployment.noted("started"))["a2"] == 2
