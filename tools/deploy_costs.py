"""Write the costs in docs/how-to/deploy.md from counted calls and published prices.

    python -m tools.deploy_costs

The calls of messages are counted here, by the package's own code on simulated SQS and on moto.
Those of jobs and conversations are in bench/scale/measured.json, counted in the same way. The
prices are in bench/scale/prices.py.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # bench/scale uses the support of the tests

from bench.scale.counting import count_files_together  # noqa: E402
from bench.scale.measuring import read_measurements  # noqa: E402
from bench.scale.prices import AS_OF, PRICES, REGION  # noqa: E402

from holdfast.queues.sqs.queue import MAX_POLL_SECONDS  # noqa: E402

if TYPE_CHECKING:
    from holdfast import AnyMessage, SQSQueue
    from holdfast.testing import SimulatedSqs

PAGE = ROOT / "docs" / "how-to" / "deploy.md"
BEGIN, END = "<!-- costs:begin -->", "<!-- costs:end -->"
MILLION = 1_000_000
MONTH_HOURS = 730
FUNCTION_GB = 0.5  # MemorySize of the templates
FILES, JOB_MINUTES = 20, 10  # of the job in the table
SERVICE_TASKS = 2  # MinTasks of exports.yaml
LISTINGS = 2  # in each interval of each task: of the heartbeats, and of the reconciler
# Start, the states StartExportJob and ExportDone, end. Heartbeats are not charged.
TRANSITIONS = 3
FRAGMENTS = 3  # messages of a customer that are answered together
WRITER_SECONDS = 5.0  # of messaging, most of which waits for the model
STAGING_SECONDS = 0.1
BATCH = 10  # messages in a call, and BatchSize of queue.yaml
COUNTED = 100  # messages of a worker

Units = Mapping[str, float]


# -- counting


@contextmanager
def count_calls() -> Iterator[Counter[str]]:
    """Count the calls that botocore makes on moto, by their names."""
    from botocore.client import BaseClient
    from moto import mock_aws

    calls: Counter[str] = Counter()
    make_call = BaseClient._make_api_call

    def count(self: Any, operation: str, arguments: Any) -> Any:
        calls[operation] += 1
        return make_call(self, operation, arguments)

    env = {"AWS_DEFAULT_REGION": "us-east-1"}
    with (
        mock_aws(),
        patch.dict(os.environ, env),
        patch.object(BaseClient, "_make_api_call", count),
    ):
        yield calls


def count_push_calls(batch: int) -> float:
    """Return the SQS calls of a message that is pushed together with others."""
    from holdfast.queue.message import AnyMessage

    queue, sqs = _open_simulated_queue()
    queue.push_many([AnyMessage() for _ in range(batch)])
    return sqs.calls.count("SendMessage", "SendMessageBatch") / batch


def count_worker_calls(handler_seconds: float, prefetch: int = BATCH) -> float:
    """Return the SQS calls of a worker with one slot for each message of a long queue.

    The parts of the worker run in this thread, so that the counts are the same each time.
    The first messages do not count, because the worker does not know its pace before them.
    """
    from holdfast.events import Events
    from holdfast.lease.keeper import LeaseKeeper
    from holdfast.queue.message import AnyMessage
    from holdfast.worker.fetcher import Fetcher
    from holdfast.worker.outcome import DONE
    from holdfast.worker.settle import InFlight

    queue, sqs = _open_simulated_queue()
    clock = queue.clock
    queue.push_many([AnyMessage() for _ in range(3 * COUNTED)])
    in_flight = InFlight(queue, Events(), clock)
    fetcher = Fetcher(LeaseKeeper(clock), in_flight, prefetch=prefetch)

    def handle_next() -> None:
        claimed = fetcher.fetch()
        assert claimed is not None
        clock.sleep(handler_seconds)
        fetcher.tick()  # as the background thread does meanwhile
        fetcher.note_finished(handler_seconds)
        in_flight.settle(claimed, DONE)

    for _ in range(COUNTED):
        handle_next()
    while in_flight.ready:
        handle_next()
    sqs.calls.clear()
    for _ in range(COUNTED):
        handle_next()
    calls = ("ReceiveMessage", "DeleteMessage", "DeleteMessageBatch")
    assert len(sqs.calls) == sqs.calls.count(*calls), sqs.calls
    return len(sqs.calls) / COUNTED


def _open_simulated_queue() -> "tuple[SQSQueue[AnyMessage], SimulatedSqs]":
    from holdfast import AnyMessage, SQSQueue
    from holdfast.events import Events
    from holdfast.testing import ManualClock, SimulatedSqs

    clock = ManualClock(auto_advance=True)
    sqs = SimulatedSqs(clock)
    client = sqs.client()
    client.create_queue(QueueName="counted")
    queue = SQSQueue("counted", AnyMessage, client=client, clock=clock, events=Events())
    return queue, sqs


def count_function_calls(batch: int = BATCH) -> float:
    """Return the SQS calls that `sqs_batch` makes for each message of a batch."""
    import boto3

    from holdfast.aws import sqs_batch
    from holdfast.queue.message import AnyMessage

    with count_calls() as calls:
        client = boto3.client("sqs")
        url = client.create_queue(QueueName="counted")["QueueUrl"]
        for number in range(batch):
            body = AnyMessage(id=str(number)).model_dump_json()
            client.send_message(QueueUrl=url, MessageBody=body)
        received = client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"]
        )["Messages"]
        calls.clear()
        event = {"Records": [_make_record(message) for message in received]}
        response = sqs_batch(lambda message: None)(event, None)
        assert response == {"batchItemFailures": []}, response
    return calls.total() / batch


def _make_record(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:counted",
        "awsRegion": "us-east-1",
    }


# -- units of each flow


def list_message_units() -> dict[str, Units]:
    """Return what one message uses, for each way to handle it."""
    # Lambda receives and deletes a batch with one call each.
    by_function = 2 / BATCH + count_function_calls()
    renewals = read_measurements()["keeper_calls_per_second"]
    return {
        "a push of one message": {"sqs.request": count_push_calls(1)},
        f"a message of a push of {BATCH}": {"sqs.request": count_push_calls(BATCH)},
        "a message handled by a service in a millisecond": {
            "sqs.request": count_worker_calls(0.001)
        },
        "a message handled by a service in 0.05 s": {"sqs.request": count_worker_calls(0.05)},
        "a message handled by a service in 0.5 s or more, or with `--prefetch 0`": {
            "sqs.request": count_worker_calls(0.5)
        },
        f"a message handled by a function, {BATCH} in a batch": {
            "sqs.request": by_function,
            "lambda.request": 1 / BATCH,
        },
        "a minute that a worker holds one message": {"sqs.request": 60 * renewals["1"]},
        "a minute of a message, if a worker holds 8": {"sqs.request": 60 * renewals["8"] / 8},
    }


def list_job_units() -> dict[str, Units]:
    """Return what a job uses, without and with its files, and for each minute that it runs."""
    flows = read_measurements()["flows"]
    job, file = _take_dynamodb(flows["job"]), _take_dynamodb(flows["job_file"])
    listing = _take_dynamodb(flows["list_100_jobs"])
    interval_seconds = 30  # STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS of exports.yaml
    listings = SERVICE_TASKS * LISTINGS * 60 / interval_seconds
    minute = {name: count * listings / 100 for name, count in listing.items()}
    renewals = {"sqs.request": 60 * read_measurements()["keeper_calls_per_second"]["8"] / 8}
    base = {**job, "sqs.request": 3, "states.transition": TRANSITIONS}
    together = _take_dynamodb(count_files_together(FILES, flows["job"]))
    per_file = {**file, "s3.put": 1}
    per_minute = _add(minute, renewals)
    return {
        "a job, without its files": base,
        "a file": per_file,
        f"a file, if {FILES} end at the same time": {**together, "s3.put": 1},
        "a minute that a job runs": per_minute,
        f"**a job of {FILES} files and {JOB_MINUTES} minutes**": _add(
            base, _scale(per_file, FILES), _scale(per_minute, JOB_MINUTES)
        ),
    }


def list_conversation_units() -> dict[str, Units]:
    """Return what a message of a customer and a turn use."""
    flows = read_measurements()["flows"]
    staged = {"lambda.request": 1.0, "lambda.gb_second": STAGING_SECONDS * FUNCTION_GB}
    first = {**_take_billed(flows["stage_first"]), **staged}
    more = {**_take_billed(flows["stage_more"]), **staged}
    function = {"lambda.request": 1.0, "lambda.gb_second": WRITER_SECONDS * FUNCTION_GB}
    by_lambda = {"sqs.request": 2.0}  # it receives and deletes the trigger
    turn = _add(_take_billed(flows["turn"]), by_lambda, function)
    return {
        "the first message of a batch": first,
        "a further message of it": more,
        "a turn, which answers the batch": turn,
        f"**a turn of {FRAGMENTS} messages**": _add(first, _scale(more, FRAGMENTS - 1), turn),
    }


def _take_dynamodb(flow: Units) -> dict[str, float]:
    """Return the capacity that a flow uses. An index is charged as a table is."""
    writes = flow.get("dynamodb.write", 0) + flow.get("dynamodb.index_write", 0)
    units = {"dynamodb.write": writes, "dynamodb.read": flow.get("dynamodb.read", 0)}
    return {name: count for name, count in units.items() if count}


def _take_billed(flow: Units) -> dict[str, float]:
    calls = sum(count for name, count in flow.items() if name.startswith("sqs."))
    return {**_take_dynamodb(flow), **({"sqs.request": calls} if calls else {})}


def _add(*parts: Units) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return total


def _scale(units: Units, factor: float) -> dict[str, float]:
    return {name: count * factor for name, count in units.items()}


# -- the page

_COLUMNS: Mapping[str, Callable[[str], bool]] = {
    "SQS": lambda name: name.startswith("sqs."),
    "DynamoDB": lambda name: name.startswith("dynamodb."),
    "Lambda": lambda name: name.startswith("lambda."),
    "Step Functions": lambda name: name.startswith("states."),
    "S3": lambda name: name.startswith("s3."),
}


def compute_dollars(units: Units, count: float = MILLION) -> float:
    """Return the price of so many units of work, by default of a million."""
    return sum(PRICES[name].compute_cost(number * count) for name, number in units.items())


def format_costs() -> str:
    """Return the tables between the markers."""
    tables = [list_message_units(), list_job_units(), list_conversation_units()]
    return "\n".join(
        [
            f"US dollars for a million of each, with the prices of {REGION} of {AS_OF}. "
            f"Assumed: functions of {FUNCTION_GB:g} GB that stage a message in "
            f"{STAGING_SECONDS:g} s and answer a batch in {WRITER_SECONDS:g} s, and "
            f"{SERVICE_TASKS} tasks of exports.",
            "",
            *(f"{_format_table(table)}\n" for table in tables),
            f"{_format_tasks()}\n",
            f"A worker that has nothing to do polls every {MAX_POLL_SECONDS} s, for "
            f"{compute_dollars({'sqs.request': 3600 / MAX_POLL_SECONDS}, MONTH_HOURS):.2f} "
            "dollars a month.",
            "",
            "The prices, with sources, are in `bench/scale/prices.py`. Check them before you "
            "plan a budget.",
        ]
    )


def _format_table(rows: Mapping[str, Units]) -> str:
    used = [
        title
        for title, matches in _COLUMNS.items()
        if any(matches(name) for units in rows.values() for name in units)
    ]
    lines = [
        f"| | counted | {' | '.join(used)} | **total** |",
        "|---|---|" + "--:|" * len(used) + "--:|",
    ]
    for name, units in rows.items():
        cells = [
            _format_dollars(
                compute_dollars(
                    {each: count for each, count in units.items() if _COLUMNS[title](each)}
                )
            )
            for title in used
        ]
        total = f"**{_format_dollars(compute_dollars(units))}**"
        lines.append(f"| {name} | {_format_units(units)} | {' | '.join(cells)} | {total} |")
    return "\n".join(lines)


_WORDS = {
    "sqs.request": "SQS",
    "dynamodb.write": "write",
    "dynamodb.read": "read",
    "lambda.request": "Lambda",
    "lambda.gb_second": "GB-s",
    "states.transition": "transitions",
    "s3.put": "PUT",
}


def _format_units(units: Units) -> str:
    return ", ".join(
        f"{units[name]:.4g} {word}" for name, word in _WORDS.items() if name in units
    )


def _format_dollars(dollars: float) -> str:
    return "" if not dollars else f"{dollars:,.2f}" if dollars < 100 else f"{dollars:,.0f}"


def _format_tasks() -> str:
    """Return the costs of a task of each service that runs for a month."""
    from support.stack_template import load_template

    lines = ["| a task that runs for a month | US dollars |", "|---|--:|"]
    for template, command in (("queue", "holdfast work"), ("exports", "holdfast export serve")):
        task = load_template(template)["Resources"]["Task"]["Properties"]
        vcpus, memory_gb = int(task["Cpu"]) / 1024, int(task["Memory"]) / 1024
        storage_gb = task.get("EphemeralStorage", {}).get("SizeInGiB", 20) - 20  # 20 are free
        hours = {
            "fargate.vcpu_hour": vcpus,
            "fargate.gb_hour": memory_gb,
            "fargate.storage_gb_hour": storage_gb,
        }
        size = f"{vcpus:g} vCPU, {memory_gb:g} GB"
        dollars = compute_dollars(hours, MONTH_HOURS)
        lines.append(f"| `{command}`, {size} | {dollars:.2f} |")
    return "\n".join(lines)


def write_costs(page: Path = PAGE) -> None:
    """Replace the text between the markers of the page."""
    before, rest = page.read_text().split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n{format_costs()}\n{END}{after}")


if __name__ == "__main__":
    write_costs()
