"""The same promises on moto, an independent implementation, to confirm the simulator.

The lean client calls it over HTTP, under `make nightly` also boto3. test_sqs_semantics.py calls
it in this process with boto3. moto uses the system's time, which is moved together with the
test's clock. Tests with many threads are omitted, because moto is not thread-safe.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import time_machine
from botocore.awsrequest import AWSPreparedRequest
from botocore.compat import HTTPHeaders
from moto.core.botocore_stubber import BotocoreStubber

from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.bad_input import SchemaPromises
from holdfast.testing.contracts.queue.dead_letters import DeadLetterPromises
from holdfast.testing.contracts.queue.delivery import DeliveryPromises
from holdfast.testing.contracts.queue.leasing import LeasePromises, StaleHolderPromises
from holdfast.testing.contracts.queue.settling import SettlePromises
from holdfast.testing.contracts.queue.support import LEASE, AnyQueue, Inject, MakeQueue
from support.aws.client_kinds import LEAN_BY_DAY, make_server_client
from support.http_server import Ask, LoopbackServer, Route, Wire

STARTED = 1_800_000_000.0

_numbers = count()
_travellers: list[time_machine.Traveller] = []


class TravellingClock(ManualClock):
    """A manual clock that moves the system's wall clock too."""

    def __init__(self, traveller: time_machine.Traveller) -> None:
        super().__init__(time=STARTED)
        self._traveller = traveller

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._traveller.shift(seconds)


def make_route() -> Route:
    """Execute calls in moto, each a millisecond after the last one.

    moto's own server needs Flask. moto executes here what it would execute under `mock_aws`,
    but botocore is not mocked, because Holdfast would then call boto3 instead of its own
    client. In moto a message that becomes visible now can be received a millisecond later. The
    system's own clock would let seconds pass on a busy machine.
    """
    stubber = BotocoreStubber()

    def route(ask: Ask, wire: Wire) -> None:
        for traveller in _travellers:
            traveller.shift(0.001)
        headers = HTTPHeaders.from_dict(ask.headers)
        url = "https://sqs.us-east-1.amazonaws.com/"
        request = AWSPreparedRequest(ask.method, url, headers, ask.body, False)
        response = stubber.process_request(request)
        assert response is not None
        status, fields, body = response
        content = body.encode() if isinstance(body, str) else body
        lines = [
            f"{name}: {value}"
            for name, value in fields.items()
            if name.lower() not in ("content-length", "server", "connection")
        ]
        wire.head(f"{status} moto", *lines, f"Content-Length: {len(content)}")
        wire.send(content)

    return route


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    with time_machine.travel(STARTED, tick=False) as traveller:
        _travellers.append(traveller)
        yield TravellingClock(traveller)
        _travellers.clear()


@pytest.fixture(scope="module", params=LEAN_BY_DAY)
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    with LoopbackServer() as server:
        server.on("/", make_route())
        client = make_server_client(request.param, "sqs", server.url(""))
        yield client
        client.close()


@pytest.fixture
def name(client: Any, clock: ManualClock) -> str:
    """The name of a queue that only this test uses."""
    name = f"work-{next(_numbers)}"
    for queue_name in (name, f"{name}-other"):
        client.create_queue(QueueName=queue_name)
    return name


class TestSQSQueueOnMoto(
    DeliveryPromises,
    LeasePromises,
    SettlePromises,
    StaleHolderPromises,
    DeadLetterPromises,
    SchemaPromises,
):
    @pytest.fixture
    def make_queue(self, client: Any, name: str, clock: ManualClock) -> MakeQueue:
        return _make_opener(client, name, clock)

    @pytest.fixture
    def make_other_queue(self, client: Any, name: str, clock: ManualClock) -> MakeQueue:
        return _make_opener(client, f"{name}-other", clock)

    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> AnyQueue:
        return make_queue()

    @pytest.fixture
    def inject(self, client: Any, name: str) -> Inject:
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        return lambda _, body: client.send_message(QueueUrl=url, MessageBody=body.decode())

    @pytest.fixture
    def contents(self) -> Callable[[AnyQueue], object]:
        return lambda queue: queue.stats()

    def test_one_lost_lease_in_a_batch_does_not_cost_the_others(self) -> None:  # type: ignore[override]
        pytest.skip("stale handles work in moto; the keeper never renews past the deadline")


def _make_opener(client: Any, name: str, clock: ManualClock) -> MakeQueue:
    def open_queue(**settings: Any) -> AnyQueue:
        defaults = {"lease_seconds": LEASE, "clock": clock, "client": client}
        return SQSQueue(name, **defaults | settings)

    return open_queue
