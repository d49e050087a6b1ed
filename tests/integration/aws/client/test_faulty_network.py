"""Holdfast on a network that loses, cuts and replaces requests and responses.

Each request may be lost before it is executed, or its response may be lost, cut or replaced
after it was executed. The service behind it keeps the truth, so that a test can compare it with
what the clients believe.
"""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest
from aws_responses import close_after

from holdfast.aws.json_client.client import JsonClient
from holdfast.errors import QueueUnavailable
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.dynamodb.tables import JobTables, define_tables
from holdfast.exports.errors import StoreUnavailable
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock
from holdfast.worker.worker import Worker
from support.aws.sqs_over_http import Response, SqsOverHttp, make_query_error
from support.dynamodb.jobs import get_job, make_result, start_job
from support.http_server import Ask, LoopbackServer, Wire

if TYPE_CHECKING:  # because pytest must load that module itself
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

T = TypeVar("T")

LEASE_SECONDS = 2.0
FAULT_SHARE = 0.25
IDS = [f"message-{number}" for number in range(120)]
SLOW_IDS = set(IDS[::30])  # they need more than one lease


Service = Callable[[Ask], Response]


class FaultyNetwork:
    """A route of a LoopbackServer that lets a service execute each request, or not."""

    def __init__(self, execute: Service, random: Random) -> None:
        self.fault_share = 0.0
        self.faults: Counter[str] = Counter()
        self._execute = execute
        self._random = random
        self._lock = Lock()

    def __call__(self, ask: Ask, wire: Wire) -> None:
        fault = self._choose_fault()
        if fault in _BEFORE:
            _BEFORE[fault](ask, wire)
        else:
            _AFTER[fault](self._execute(ask), ask, wire)

    def _choose_fault(self) -> str:
        with self._lock:
            if self._random.random() >= self.fault_share:
                return "none"
            fault = FAULTS[self.faults.total() % len(FAULTS)]  # so that each kind happens
            self.faults[fault] += 1
            return fault


def forward_to(url: str) -> Service:
    """Return a service that sends each request on to a server."""
    server = urlsplit(url)

    def execute(ask: Ask) -> Response:
        connection = http.client.HTTPConnection(server.hostname or "", server.port, timeout=60)
        headers = {**ask.headers, "connection": "close"}
        connection.request(ask.method, ask.path, ask.body, headers)
        response = connection.getresponse()
        return Response(f"{response.status} {response.reason}", response.read())

    return execute


def _truncate(response: Response, ask: Ask, wire: Wire) -> None:
    wire.head("200 OK", f"Content-Length: {len(response.body) + 100}")
    wire.send(response.body)
    wire.close()


_BEFORE: dict[str, Callable[[Ask, Wire], None]] = {
    "lost request": lambda ask, wire: wire.reset(),
    "closed": lambda ask, wire: wire.close(),
    "a portal that says OK": Response("200 OK", b"<html>Please sign in"),
    "throttled": make_query_error("com.amazonaws#RequestThrottled", "RequestThrottled"),
}
_AFTER: dict[str, Callable[[Response, Ask, Wire], None]] = {
    "none": lambda response, ask, wire: response(ask, wire),
    "lost response": lambda response, ask, wire: wire.reset(),
    "closed without a response": lambda response, ask, wire: wire.close(),
    "truncated": _truncate,
    "closed while idle": lambda response, ask, wire: close_after(response)(ask, wire),
    "HTML": lambda response, ask, wire: Response("502 Bad Gateway", b"<html>proxy")(ask, wire),
    "HTML that says OK": lambda response, ask, wire: Response("200 OK", b"<html>hi")(ask, wire),
}
FAULTS = [*_BEFORE, *(name for name in _AFTER if name != "none")]


@pytest.fixture
def connect(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], FaultyNetwork]:
    """Put a faulty network between this process and a service."""

    def connect(service: Any) -> FaultyNetwork:
        network = FaultyNetwork(service, Random(18))
        server.on("/", network)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
        sleep = time.sleep  # clients wait less between their tries
        monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.02)))
        return network

    return connect


def repeat_until_available(call: Callable[[], T]) -> T:
    """Make the call, again and again until the service says that it was done."""
    while True:
        try:
            return call()
        except (QueueUnavailable, StoreUnavailable):
            continue


# -- SQS


@pytest.fixture
def queue() -> Iterator[SQSQueue[Any]]:
    # A lost receive costs an attempt, and none of the messages may be dead-lettered for it.
    queue: SQSQueue[Any] = SQSQueue("work", lease_seconds=LEASE_SECONDS, max_attempts=50)
    yield queue
    queue.close()


def push_all(queue: SQSQueue[Any]) -> None:
    for start in range(0, len(IDS), 10):
        messages = [AnyMessage(id=each) for each in IDS[start : start + 10]]
        repeat_until_available(lambda: queue.push_many(messages))  # noqa: B023


def test_no_message_is_lost_or_settled_twice_whatever_the_network_loses(
    connect: Callable[[Any], FaultyNetwork], queue: SQSQueue[Any]
) -> None:
    """Each delete is compared with what the handler had done by then."""
    sqs = SqsOverHttp()
    sqs.client.create_queue(QueueName="work")
    network = connect(sqs)
    network.fault_share = FAULT_SHARE
    push_all(queue)
    assert set(IDS) <= set(sqs.sent)
    finished: list[tuple[str, Any]] = []

    def handle(message: AnyMessage, _: object) -> None:
        if message.id in SLOW_IDS:
            threading.Event().wait(1.5 * LEASE_SECONDS)
        finished.append((message.id, get_lease(message).handle))

    # Not `until_empty`: messages of a lost receive stay hidden, as if another worker had them.
    report = Worker(queue, handle, concurrency=16).run(until_done=True)

    assert isinstance(queue._client.retrying_client, JsonClient)
    assert {message_id for message_id, _ in finished} == set(IDS)
    assert set(sqs.deleted) <= {receipt.handle for _, receipt in finished}
    assert len(sqs.deleted) == len(sqs.sent)  # each by one receipt
    # Fewer if all responses to an ack were lost until the lease had ended.
    assert 0.9 * len(sqs.sent) < report.completed <= len(sqs.sent)
    network.fault_share = 0.0
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.failed) == (0, 0, 0, 0)
    assert set(network.faults) == set(FAULTS)


# -- DynamoDB


def test_every_result_is_counted_once_whatever_the_network_loses(
    connect: Callable[[Any], FaultyNetwork],
    ministack: "Ministack",
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ({"AWS_REGION": ""} | ministack.env).items():
        monkeypatch.setenv(name, value)
    tables = JobTables(jobs="FaultyJobs", tasks="FaultyTasks")
    for definition in define_tables(tables):
        ministack.client("dynamodb").create_table(**definition)
    network = connect(forward_to(ministack.url))
    jobs = DynamoDBJobs(jobs_table=tables.jobs, tasks_table=tables.tasks)
    tasks = start_job(jobs, clock, 60)
    network.fault_share = FAULT_SHARE
    repeat_until_available(lambda: jobs.set_total_tasks("job", len(tasks)))

    def finish(number: int) -> int:
        """Report two tasks, each of which another thread reports as well."""
        pair = [make_result(tasks[number]), make_result(tasks[number - 1])]
        return repeat_until_available(lambda: jobs.record_results("job", pair))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(finish, range(len(tasks))))
        outcomes = list(
            pool.map(
                lambda _: repeat_until_available(lambda: jobs.claim_outcome("job")), range(8)
            )
        )
    network.fault_share = 0.0
    state = get_job(jobs).state
    assert (state.completed_tasks, state.failed_tasks) == (len(tasks), 0)
    assert get_job(jobs).is_decided
    # None gets it if every response to the one that decides it is lost. The row says so, and
    # the reconciler sends the callback.
    assert sum(outcome is not None for outcome in outcomes) <= 1
    assert isinstance(jobs._database._client.client, JsonClient)
    assert set(network.faults) == set(FAULTS)
    jobs.close()
