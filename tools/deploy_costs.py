"""Write the costs in docs/how-to/deploy.md from counted calls and published prices.

    python -m tools.deploy_costs

The calls of a worker are counted here, by the package's own code on simulated SQS. Those of
jobs and conversations are in bench/scale/measured.json, counted on moto.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # for the support of the tests

from bench.scale.measuring import read_measurements  # noqa: E402
from bench.scale.prices import AS_OF, PRICES, REGION  # noqa: E402

from holdfast import AnyMessage, SQSQueue  # noqa: E402
from holdfast.events import Events  # noqa: E402
from holdfast.lease.keeper import LeaseKeeper  # noqa: E402
from holdfast.queues.sqs.queue import MAX_POLL_SECONDS  # noqa: E402
from holdfast.testing import ManualClock, SimulatedSqs  # noqa: E402
from holdfast.worker.fetcher import Fetcher  # noqa: E402
from holdfast.worker.outcome import DONE  # noqa: E402
from holdfast.worker.settle import InFlight  # noqa: E402
from support.stack_template import load_template  # noqa: E402

PAGE = ROOT / "docs" / "how-to" / "deploy.md"
BEGIN, END = "<!-- costs:begin -->", "<!-- costs:end -->"
MILLION = 1_000_000
MONTH_HOURS = 730
FUNCTION_GB = 0.5  # MemorySize of the templates
FILES, JOB_MINUTES = 20, 10  # of the job in the table
SERVICE_TASKS = 2  # MinTasks of exports.yaml
LISTINGS_PER_MINUTE = 4  # of each task: two in an interval of 30 s
# Start, the states StartExportJob and ExportDone, end. Heartbeats are not charged.
TRANSITIONS = 3
FRAGMENTS = 3  # messages of a customer that are answered together
WRITER_SECONDS = 5.0  # of messaging, most of which waits for the model
STAGING_SECONDS = 0.1
RENEWALS_PER_MINUTE = 3  # of a lease of 60 s
BATCH = 10  # messages in a call, and BatchSize of queue.yaml
COUNTED = 100  # messages of a worker

Units = Mapping[str, float]


def count_worker_calls(handler_seconds: float) -> float:
    """Return the SQS calls of a worker with one slot for each message of a long queue.

    The parts of the worker run in this thread, so that the counts are the same each time.
    The first messages do not count, because the worker does not know its pace before them.
    """
    clock = ManualClock(auto_advance=True)
    sqs = SimulatedSqs(clock)
    client = sqs.client()
    client.create_queue(QueueName="counted")
    queue = SQSQueue("counted", AnyMessage, client=client, clock=clock, events=Events())
    queue.push_many([AnyMessage() for _ in range(3 * COUNTED)])
    in_flight = InFlight(queue, Events(), clock)
    fetcher = Fetcher(LeaseKeeper(clock), in_flight, prefetch=BATCH)

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
    return len(sqs.calls) / COUNTED


def list_units() -> dict[str, Units]:
    """Return what each kind of work uses."""
    flows = {name: _bill(flow) for name, flow in read_measurements()["flows"].items()}
    staged = {"lambda.request": 1.0, "lambda.gb_second": STAGING_SECONDS * FUNCTION_GB}
    answered = {"lambda.request": 1.0, "lambda.gb_second": WRITER_SECONDS * FUNCTION_GB}
    first, more = _add(flows["stage_first"], staged), _add(flows["stage_more"], staged)
    turn = _add(flows["turn"], {"sqs.request": 2}, answered)  # Lambda receives and deletes
    job = _add(flows["job"], {"sqs.request": 3, "states.transition": TRANSITIONS})
    file = _add(flows["job_file"], {"s3.put": 1})
    listings = SERVICE_TASKS * LISTINGS_PER_MINUTE / 100
    renewals = {"sqs.request": RENEWALS_PER_MINUTE / BATCH}
    minute = _add(_scale(flows["list_100_jobs"], listings), renewals)
    return {
        "messages, pushed one by one": {"sqs.request": 1},
        f"messages, pushed {BATCH} at a time": {"sqs.request": 1 / BATCH},
        "messages handled by a service in a millisecond": {
            "sqs.request": count_worker_calls(0.001)
        },
        "messages handled by a service in 0.05 s": {"sqs.request": count_worker_calls(0.05)},
        "messages handled by a service in 0.5 s or more": {
            "sqs.request": count_worker_calls(0.5)
        },
        f"messages handled by a function, {BATCH} in a batch": {
            "sqs.request": 3 / BATCH,  # a batch is received, extended and deleted
            "lambda.request": 1 / BATCH,
        },
        "minutes that a worker holds one message": {"sqs.request": RENEWALS_PER_MINUTE},
        f"jobs of {FILES} files and {JOB_MINUTES} minutes": _add(
            job, _scale(file, FILES), _scale(minute, JOB_MINUTES)
        ),
        f"turns of {FRAGMENTS} messages": _add(first, _scale(more, FRAGMENTS - 1), turn),
    }


def _bill(flow: Units) -> dict[str, float]:
    """Return what a flow is charged for. An index is charged as a table is."""
    return {
        "sqs.request": sum(n for name, n in flow.items() if name.startswith("sqs.")),
        "dynamodb.write": flow.get("dynamodb.write", 0) + flow.get("dynamodb.index_write", 0),
        "dynamodb.read": flow.get("dynamodb.read", 0),
    }


def _add(*parts: Units) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)  # type: ignore[arg-type]
    return dict(total)


def _scale(units: Units, factor: float) -> dict[str, float]:
    return {name: count * factor for name, count in units.items()}


# -- the page

_WORDS = {
    "sqs.request": "SQS",
    "dynamodb.write": "write",
    "dynamodb.read": "read",
    "lambda.request": "Lambda",
    "lambda.gb_second": "GB-s",
    "states.transition": "transitions",
    "s3.put": "PUT",
}


def compute_dollars(units: Units, count: float = MILLION) -> float:
    """Return the price of so many units of work, by default of a million."""
    return sum(PRICES[name].compute_cost(number * count) for name, number in units.items())


def format_costs() -> str:
    """Return the text between the markers."""
    rows = [
        f"| {name} | {_format_units(units)} | {compute_dollars(units):,.2f} |"
        for name, units in list_units().items()
    ]
    idle = compute_dollars({"sqs.request": 3600 / MAX_POLL_SECONDS}, MONTH_HOURS)
    tasks = " and ".join(
        f"`{command}` {_compute_task_dollars(template):.2f}"
        for template, command in (
            ("queue", "holdfast work"),
            ("exports", "holdfast export serve"),
        )
    )
    return "\n".join(
        [
            f"Prices of {REGION} of {AS_OF} (`bench/scale/prices.py`; check them before you "
            f"plan a budget). Assumed: functions of {FUNCTION_GB:g} GB that stage a message in "
            f"{STAGING_SECONDS:g} s and answer a batch in {WRITER_SECONDS:g} s, and "
            f"{SERVICE_TASKS} tasks of exports.",
            "",
            "| a million of | units of each | US dollars |",
            "|---|---|--:|",
            *rows,
            "",
            f"A task that runs for a month costs, in US dollars: {tasks}. A worker that has "
            f"nothing to do polls every {MAX_POLL_SECONDS} s, for {idle:.2f} a month.",
        ]
    )


def _format_units(units: Units) -> str:
    return ", ".join(
        f"{units[name]:.4g} {word}" for name, word in _WORDS.items() if units.get(name)
    )


def _compute_task_dollars(template: str) -> float:
    """Return the cost of a task that runs for a month."""
    task = load_template(template)["Resources"]["Task"]["Properties"]
    storage_gb = task.get("EphemeralStorage", {}).get("SizeInGiB", 20) - 20  # 20 are free
    hours = {
        "fargate.vcpu_hour": int(task["Cpu"]) / 1024,
        "fargate.gb_hour": int(task["Memory"]) / 1024,
        "fargate.storage_gb_hour": storage_gb,
    }
    return compute_dollars(hours, MONTH_HOURS)


def write_costs(page: Path = PAGE) -> None:
    """Replace the text between the markers of the page."""
    before, rest = page.read_text().split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n{format_costs()}\n{END}{after}")


if __name__ == "__main__":
    write_costs()
