"""dynamodb: measure the CPU of a conversation turn and of a counted batch, with each client."""

from collections.abc import Callable
from functools import partial
from itertools import count
from statistics import mean
from typing import Any

from bench.accounting import FULL, create_job, make_results
from bench.chat import FRAGMENTS, Chat
from bench.report import Result, at_most
from bench.session import Figures, Session, cpu_seconds, in_fresh_process, serving
from bench.sqs_server import BOTO3, LEAN, make_client, serve_dynamodb
from holdfast.aws.clients import make_retrying_client
from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.dynamodb.tables import create_tables as create_chat_tables
from holdfast.chat.messages import Trigger
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.dynamodb import create_tables as create_job_tables
from holdfast.queues.opening import open_queue

TURN = f"turn of {FRAGMENTS} messages"
BATCH = f"counted batch of {FULL} results"
WARM = 3  # turns or batches that are not counted
MAX_SHARE = 0.5  # of boto3's CPU


def run_dynamodb(session: Session) -> Result:
    """Compare both clients."""
    title = "DynamoDB: CPU of a conversation turn and of a counted batch"
    counts = {TURN: session.size(100, 30), BATCH: session.size(30, 8)}
    numbers = count()
    with serving(serve_dynamodb) as endpoint:
        in_fresh_process(create_tables, endpoint)

        def measure_next(work: str, client: str) -> Figures:
            number = next(numbers)
            return in_fresh_process(measure, work, client, endpoint, counts[work], number)

        measured = session.measure(
            title,
            {
                f"{work}, {client}": partial(measure_next, work, client)
                for work in counts
                for client in (LEAN, BOTO3)
            },
        )
    return Result(
        title,
        ("", "CPU"),
        measured.make_rows(("ms", "{:.2f} ms")),
        [
            at_most(
                f"{work}: at most half of the CPU with boto3's client",
                measured.ratio(f"{work}, {LEAN}", f"{work}, {BOTO3}", "ms"),
                MAX_SHARE,
                "×",
            )
            for work in counts
        ],
        measured,
        "CPU of the working process alone; the server is ministack.",
    )


# -- in a separate process


def create_tables(endpoint: str) -> None:
    """Create the tables of conversations and of jobs."""
    client = _make_client(BOTO3, endpoint)
    create_chat_tables(client)
    create_job_tables(client)


def measure(work: str, client_name: str, endpoint: str, count: int, number: int) -> Figures:
    """Return the CPU time of a turn or batch. `number` is unique for each measurement."""
    client = _make_client(client_name, endpoint)
    measure_each = _measure_turns if work == TURN else _measure_batches
    return {"ms": mean(measure_each(client, WARM + count, number)[WARM:]) * 1000}


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
