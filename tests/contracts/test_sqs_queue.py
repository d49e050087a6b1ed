"""SQSQueue keeps the queue contract, on the simulator that ships in holdfast.testing.

The lean client calls it over HTTP, nightly boto3 too. Its variants are called without a
network, by a client that behaves as boto3's.
"""

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from holdfast.queue.manager import QueueManager
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, SimulatedSqs
from holdfast.testing.contracts.queue.contract import QueueContract
from holdfast.testing.contracts.queue.support import LEASE, AnyQueue, Inject, MakeQueue
from holdfast.testing.sqs.message_calls import StaleHandles
from support.aws.client_kinds import LEAN_BY_DAY, make_server_client
from support.aws.sqs_over_http import SqsOverHttp
from support.http_server import LoopbackServer

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

NOT_SQS = QueueManager.capabilities - {"redrive_by_id", "drop"}


class TestSQSQueue(QueueContract):
    lacks = NOT_SQS
    stale_handles: StaleHandles = "strict"

    @pytest.fixture
    def sqs(self, clock: ManualClock) -> SimulatedSqs:
        return SimulatedSqs(clock, stale_handles=self.stale_handles)

    @pytest.fixture
    def client(self, sqs: SimulatedSqs) -> Any:
        return sqs.client()

    @pytest.fixture
    def make_queue(self, client: Any, clock: ManualClock) -> MakeQueue:
        return _make_opener(client, "work", clock)

    @pytest.fixture
    def make_other_queue(self, client: Any, clock: ManualClock) -> MakeQueue:
        return _make_opener(client, "other", clock)

    @pytest.fixture
    def fifo_ids(self) -> Callable[[], dict[str, str]]:
        return dict

    @pytest.fixture
    def inject(self, sqs: SimulatedSqs, fifo_ids: Callable[[], dict[str, str]]) -> Inject:
        return make_injector(sqs.client(), fifo_ids)

    @pytest.fixture
    def contents(self) -> Callable[[AnyQueue], object]:
        return lambda queue: queue.stats()


def make_injector(client: Any, fifo_ids: Callable[[], dict[str, str]] = dict) -> Inject:
    """Make the contract's `inject` for this client."""

    def send(queue: AnyQueue, body: bytes) -> None:
        name = queue.name.removeprefix("sqs:")
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        # SQS accepts only allowed characters and no empty text, so bytes are converted.
        text = _ILLEGAL.sub("?", body.decode("utf-8", "replace")) or " "
        client.send_message(QueueUrl=url, MessageBody=text, **fifo_ids())

    return send


def _make_opener(client: Any, name: str, clock: ManualClock, **more: Any) -> MakeQueue:
    kind = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    client.create_queue(QueueName=name, Attributes=kind)

    def open_queue(**settings: Any) -> AnyQueue:
        defaults = {"lease_seconds": LEASE, "clock": clock, "client": client, **more}
        return SQSQueue(name, **defaults | settings)

    return open_queue


class TestSQSQueueOverHttp(TestSQSQueue):
    messages = 80  # each takes several calls over HTTP

    @pytest.fixture
    def client(self, http_client: Any, server: LoopbackServer, sqs: SimulatedSqs) -> Any:
        service = SqsOverHttp(sqs)
        server.on("/", lambda ask, wire: service(ask)(ask, wire))
        return http_client


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as server:
        yield server


@pytest.fixture(scope="module", params=LEAN_BY_DAY)
def http_client(request: pytest.FixtureRequest, server: LoopbackServer) -> Iterator[Any]:
    client = make_server_client(request.param, "sqs", server.url(""))
    yield client
    client.close()


class TestSQSQueueWhereStaleHandlesWork(TestSQSQueue):
    """Amazon warns that stale handles may work; then only the deadline protects a holder."""

    stale_handles = "effective"

    def test_one_lost_lease_in_a_batch_does_not_cost_the_others(self) -> None:  # type: ignore[override]
        pytest.skip("SQS does not refuse here; the keeper never renews past the deadline")


class TestSQSQueueWhereStaleHandlesDoNothing(TestSQSQueueWhereStaleHandlesWork):
    stale_handles = "ignored"


class TestSQSFifoQueue(TestSQSQueue):
    """A FIFO queue in which each message is its own group, so that none waits for another."""

    @pytest.fixture
    def make_queue(self, client: Any, clock: ManualClock) -> MakeQueue:
        return _make_opener(client, "work.fifo", clock, group_by="id")

    @pytest.fixture
    def make_other_queue(self, client: Any, clock: ManualClock) -> MakeQueue:
        return _make_opener(client, "other.fifo", clock, group_by="id")

    @pytest.fixture
    def fifo_ids(self) -> Callable[[], dict[str, str]]:
        numbers = count()

        def next_ids() -> dict[str, str]:
            number = str(next(numbers))
            return {"MessageGroupId": number, "MessageDeduplicationId": number}

        return next_ids


def _make_skip(reason: str) -> Callable[..., None]:
    def skipped(self: object) -> None:
        pytest.skip(reason)

    return skipped


for _name in (
    "test_a_polled_message_can_be_pushed_as_a_new_one",
    "test_an_id_may_be_pushed_again_after_its_ack",
    "test_a_stale_holder_cannot_change_a_later_push_of_its_id",
    "test_one_id_pushed_twice_is_two_messages",
    "test_redriving_takes_every_dead_letter_of_the_id",
):
    setattr(TestSQSFifoQueue, _name, _make_skip("SQS accepts an id once in five minutes"))
for _name in (
    "test_a_delayed_message_waits_for_its_time",
    "test_a_poll_ends_when_a_delayed_message_is_due",
):
    setattr(TestSQSFifoQueue, _name, _make_skip("SQS delays no single message of a FIFO queue"))
