"""dynamodb: measure the CPU of a conversation turn and of a counted batch, with each client."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from statistics import mean, median
from typing import Any

from tools import listeners

from bench import sqs_server
from bench.accounting import FULL, create_job, make_results
from bench.aws_clients import BOTO3, LEAN, make_client
from bench.chat import FRAGMENTS, Chat
from bench.figures import cpu_seconds
from bench.orchestrator_server import serving
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio
from holdfast.aws.clients import make_retrying_client
from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.dynamodb.tables import create_tables as create_chat_tables
from holdfast.chat.messages import Trigger
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.dynamodb import create_tables as create_job_tables
from holdfast.queues.opening import open_queue

NAME = "dynamodb"
TITLE = "DynamoDB: CPU of a conversation turn and of a counted batch"
TURN = f"turn of {FRAGMENTS} messages"
BATCH = f"counted batch of {FULL} results"
WARM = 3  # turns or batches that are not counted
MAX_SHARE = 0.5  # of boto3's CPU


@dataclass(frozen=True, slots=True)
class Way:
    """A unit of work and the client that calls DynamoDB for it."""

    work: str
    client: str

    def __str__(self) -> str:
        return f"{self.work}, {self.client}"


WAYS = [Way(work, client) for work in (TURN, BATCH) for client in (LEAN, BOTO3)]

Measured = Mapping[Way, Sequence[float]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    counts = {TURN: session.size(100, 30), BATCH: session.size(30, 8)}
    measured: dict[Way, list[float]] = defaultdict(list)
    with serving(serve_dynamodb) as endpoint:
        in_fresh_process(create_tables, endpoint)
        listeners.assert_loopback_only()  # the server has responded, so its sockets are open
        for number, way in enumerate(session.interleaved(TITLE, WAYS)):
            seconds = in_fresh_process(measure, way, endpoint, counts[way.work], number)
            measured[way].append(seconds)
    return _result(measured, counts)


def serve_dynamodb(answer: Connection) -> None:
    """Run ministack until killed."""
    os.environ["IOT_MTLS_ENABLED"] = "0"  # it would listen on all addresses
    sqs_server.serve(answer, services="dynamodb")


# -- in a separate process


def create_tables(endpoint: str) -> None:
    """Create the tables of conversations and of jobs."""
    client = _make_client(BOTO3, endpoint)
    create_chat_tables(client)
    create_job_tables(client)


def measure(way: Way, endpoint: str, count: int, number: int) -> float:
    """Return the CPU seconds of a turn or batch. `number` is unique for each measurement."""
    client = _make_client(way.client, endpoint)
    measure_each = _measure_turns if way.work == TURN else _measure_batches
    return mean(measure_each(client, WARM + count, number)[WARM:])


def _make_client(name: str, endpoint: str) -> Any:
    return make_client(name, endpoint, lambda: make_retrying_client("dynamodb"))


def _measure_turns(client: Any, count: int, number: int) -> list[float]:
    chat = Chat(DynamoDBConversations(client=client), open_queue("memory:bench", Trigger))
    key = chat.open(number)
    seconds = []
    for _ in range(count):
        for _ in range(FRAGMENTS):
            chat.stage(key)
        seconds.append(_measure_cpu(chat.answer))
    chat.keeper.stop()
    return seconds


def _measure_batches(client: Any, count: int, number: int) -> list[float]:
    jobs, job_id = DynamoDBJobs(client=client), f"job-{number}"
    create_job(jobs, job_id, count * FULL)
    results = make_results(jobs, job_id)
    return [
        _measure_cpu(partial(jobs.record_results, job_id, results[start : start + FULL]))
        for start in range(0, count * FULL, FULL)
    ]


def _measure_cpu(work: Callable[[], object]) -> float:
    began = cpu_seconds()
    work()
    return cpu_seconds() - began


# -- the report


def _result(measured: Measured, counts: Mapping[str, int]) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "CPU", "lowest to highest", "of boto3's"),
        rows=[_row(measured, way) for way in WAYS],
        bars=[
            Bar(
                f"{work}: at most half of the CPU with boto3's client",
                _compare(measured, Way(work, LEAN)),
                MAX_SHARE,
                "×",
                at_least=False,
            )
            for work in (TURN, BATCH)
        ],
        notes=(
            f"CPU of the working process alone, per turn ({counts[TURN]} in a round) and per "
            f"batch ({counts[BATCH]}). The server is ministack, in a process of its own. "
            "Both clients do the same work, in interleaved rounds.",
            "In a turn the queue is in memory, writer and sender answer at once, and staging "
            f"is not counted. A batch is one transaction of {FULL} task rows and the row of "
            "its job.",
        ),
    )


def _row(measured: Measured, way: Way) -> list[str]:
    each = [seconds * 1000 for seconds in measured[way]]
    return [
        str(way),
        f"{median(each):.2f} ms",
        f"{min(each):.2f} to {max(each):.2f}",
        f"{_compare(measured, way):.2f} ×",
    ]


def _compare(measured: Measured, way: Way) -> float:
    return ratio(measured[way], measured[Way(way.work, BOTO3)])
