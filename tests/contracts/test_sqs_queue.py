"""SQSQueue keeps the queue contract, on the simulator that ships in holdfast.testing."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from queue_contract import QueueContract
from queue_promises.kit import LEASE, AnyQueue, Inject, MakeQueue

from holdfast.adapters.aws.sqs import SQSQueue
from holdfast.core.queue import QueueManager
from holdfast.testing import ManualClock, SimulatedSqs
from holdfast.testing.sqs.holding import StaleHandles

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

NOT_SQS = QueueManager.capabilities - {"redrive_by_id", "drop"}


class TestSQSQueue(QueueContract):
    lacks = NOT_SQS
    stale_handles: StaleHandles = "strict"

    @pytest.fixture
    def sqs(self, clock: ManualClock) -> SimulatedSqs:
        return SimulatedSqs(clock, stale_handles=self.stale_handles)

    @pytest.fixture
    def make_queue(self, sqs: SimulatedSqs, clock: ManualClock) -> MakeQueue:
        return _opener(sqs, "work", clock)

    @pytest.fixture
    def make_other_queue(self, sqs: SimulatedSqs, clock: ManualClock) -> MakeQueue:
        return _opener(sqs, "other", clock)

    @pytest.fixture
    def inject(self, sqs: SimulatedSqs) -> Inject:
        return injector(sqs.client())

    @pytest.fixture
    def contents(self) -> Callable[[AnyQueue], object]:
        return lambda queue: queue.stats()


def injector(client: Any) -> Inject:
    def send(queue: AnyQueue, body: bytes) -> None:
        name = queue.name.removeprefix("sqs:")
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        # SQS takes legal text only, and no empty one: foreign bytes come as such.
        text = _ILLEGAL.sub("?", body.decode("utf-8", "replace")) or " "
        client.send_message(QueueUrl=url, MessageBody=text)

    return send


def _opener(sqs: SimulatedSqs, name: str, clock: ManualClock) -> MakeQueue:
    client = sqs.client()
    client.create_queue(QueueName=name)

    def open_one(**settings: Any) -> AnyQueue:
        defaults = {"lease_seconds": LEASE, "clock": clock, "client": client}
        return SQSQueue(name, **defaults | settings)

    return open_one


class TestSQSQueueWhereStaleHandlesWork(TestSQSQueue):
    """As Amazon warns that they may: then only our own deadline protects the next holder."""

    stale_handles = "effective"

    def test_one_lost_lease_in_a_batch_does_not_cost_the_others(self) -> None:  # type: ignore[override]
        pytest.skip("here SQS does not refuse; the keeper never asks past the deadline")


class TestSQSQueueWhereStaleHandlesDoNothing(TestSQSQueueWhereStaleHandlesWork):
    stale_handles = "ignored"
