"""How many writes of services that share jobs are refused because the row has changed."""

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event, Lock, Thread
from time import sleep
from typing import Any

import pytest
from botocore.exceptions import ClientError

from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.model import JobStatus
from holdfast.exports.reconciler import Reconciler
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.tracker import JobTracker
from support.dynamodb.faults import READS, RecordingClient
from support.dynamodb.service import clear_tables
from support.exports.inline_pool import InlinePool, succeed
from support.exports.stage import make_runner

FILES, SLOTS = 6, 16
CALL_SECONDS = 0.004  # of DynamoDB, which is about as long within a region
FILE_SECONDS = 3.0  # on average
REDELIVERED_SECONDS = 4.0  # when the jobs run, the second service gets their messages, too


class CountingClient(RecordingClient):
    """Takes the time of a network, and counts writes and those that are refused."""

    one_call = Lock()  # moto's transactions are not isolated from each other

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.counts: Counter[str] = Counter()

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        sleep(CALL_SECONDS / 2)
        self.counts["writes"] += operation not in READS
        try:
            with self.one_call:
                return super().respond(operation, arguments)
        except ClientError as error:
            self.counts[_find_cause(operation, arguments, error)] += 1
            raise
        finally:
            sleep(CALL_SECONDS / 2)


def _find_cause(operation: str, arguments: Mapping[str, Any], error: ClientError) -> str:
    """Return "conflicts" if a job's row had changed since it was read.

    A task that is counted already and a job that exists are refused for good reason.
    """
    if operation == "transact_write_items":
        reasons = error.response["CancellationReasons"]
        rows = [next(iter(item.values())) for item in arguments["TransactItems"]]
        refused = [
            row for row, reason in zip(rows, reasons, strict=True) if reason["Code"] != "None"
        ]
        is_job = any(row["TableName"] == "ExportJobs" for row in refused)
    else:
        is_job = operation == "update_item" and arguments["TableName"] == "ExportJobs"
    return "conflicts" if is_job else "known"


class SlotPool(InlinePool):
    """Does tasks in the threads of slots, each for a random time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ended = Event()
        for number in range(SLOTS):
            Thread(target=self._run, args=(Random(number),), daemon=True).start()

    def _run(self, random: Random) -> None:
        while not self.ended.wait(0.01):
            while (task := self._dispatcher.take()) is not None:
                sleep(random.uniform(0, 2 * FILE_SECONDS))
                self._dispatcher.finish(succeed(task))

    def wake(self) -> None:
        """Slots look for tasks by themselves."""


def run_service(client: CountingClient, count: int, delay_seconds: float) -> list[JobStatus]:
    """Work on all jobs at once, as a service does, with a reconciler that passes often."""
    sleep(delay_seconds)
    jobs = DynamoDBJobs(client=client)
    tracker = JobTracker(jobs, None)
    runner, dispatcher, _ = make_runner(jobs, tracker)
    pool, reconciler = SlotPool(dispatcher), Reconciler(jobs, tracker, interval_seconds=1.0)
    reconciler.start()
    specs = tuple(TaskSpec(url=f"https://files.example/{n}") for n in range(FILES))
    requests = [JobRequest(f"job-{n}", "e", "u", None, specs) for n in range(count)]
    with ThreadPoolExecutor(count) as threads:
        ended = list(threads.map(lambda request: runner.run(request, lost=Event()), requests))
    reconciler.stop()
    pool.ended.set()
    return [job.status for job in ended]


@pytest.mark.nightly
@pytest.mark.parametrize(("jobs", "services", "max_percent"), [(100, 1, 1.0), (20, 2, 15.0)])
def test_few_writes_are_refused(
    moto: Any, jobs: int, services: int, max_percent: float
) -> None:
    """Of one service with 100 jobs, and of two that have the same jobs after lost leases.

    Two services with 100 jobs would wait for moto, which makes calls long and conflicts many.
    With 20 jobs none to nine percent conflict, as busy as the machine is.
    """
    clients = [CountingClient(clear_tables(moto)) for _ in range(services)]
    with ThreadPoolExecutor(services) as threads:
        runs = threads.map(run_service, clients, [jobs] * services, [0.0, REDELIVERED_SECONDS])
        assert list(runs) == [[JobStatus.COMPLETED] * jobs] * services
    counts = sum((client.counts for client in clients), Counter[str]())
    print(counts)
    assert 100 * counts["conflicts"] / counts["writes"] <= max_percent
