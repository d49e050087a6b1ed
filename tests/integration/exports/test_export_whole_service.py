"""The service as it is deployed: one real process with a state machine, SQS, DynamoDB and S3.

ministack provides the services. Heartbeat timeouts are tested with moto
(test_state_machine_moto.py), because ministack does not implement them.
"""

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from export_cli import (
    ExportCli,
    list_workers,
    open_export_cli,
)

from holdfast.exports.dynamodb.tables import create_tables
from support.cli.commands import Cli, clean_env, log_contains, start, wait_for_end
from support.http_server import Ask, Route, Wire
from support.paths import ROOT
from support.waiting import wait_until

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

NAMES = tuple(f"{n}.txt" for n in range(8))
EXAMPLE = ROOT / "examples/export/state-machine.json"


@pytest.fixture
def place(cli: Cli) -> Iterator[ExportCli]:
    with open_export_cli(cli) as place:
        yield place


class Cloud:
    """The AWS resources of the service, and what can be read from them."""

    def __init__(self, ministack: "Ministack", name: str = "whole") -> None:
        self.name = name
        self.sqs, self.s3 = ministack.client("sqs"), ministack.client("s3")
        self.dynamodb = ministack.client("dynamodb")
        self.step_functions = ministack.client("stepfunctions")
        self.queue = self.sqs.create_queue(QueueName=f"{name}-jobs")["QueueUrl"]
        self.s3.create_bucket(Bucket="whole-files")
        create_tables(
            self.dynamodb, jobs_table=f"{name}-ExportJobs", tasks_table=f"{name}-ExportTasks"
        )

    def begin(self, **job: str) -> str:
        """Create the state machine, start an execution, and return its ARN."""
        definition = json.loads(EXAMPLE.read_text())
        definition["States"]["StartExportJob"]["Parameters"]["QueueUrl"] = self.queue
        machine = self.step_functions.create_state_machine(
            name=self.name,
            definition=json.dumps(definition),
            roleArn="arn:aws:iam::000000000000:role/whole",
        )["stateMachineArn"]
        begun = self.step_functions.start_execution(
            stateMachineArn=machine, input=json.dumps(job)
        )
        return str(begun["executionArn"])

    def describe_execution(self, arn: str) -> Any:
        """Return the execution as the service describes it."""
        return self.step_functions.describe_execution(executionArn=arn)

    def read_row(self) -> dict[str, Any]:
        """Return the job's row."""
        key = {"jobId": {"S": "job-1"}}
        response = self.dynamodb.get_item(
            TableName=f"{self.name}-ExportJobs", Key=key, ConsistentRead=True
        )
        return {
            name: next(iter(value.values())) for name, value in response.get("Item", {}).items()
        }

    def read_objects(self) -> dict[str, bytes]:
        """Return the exported objects."""
        listed = self.s3.list_objects_v2(Bucket="whole-files").get("Contents", [])
        return {
            entry["Key"]: self.s3.get_object(Bucket="whole-files", Key=entry["Key"])[
                "Body"
            ].read()
            for entry in listed
        }


@pytest.mark.requirement(
    "R004-006",
    "R004-035",
    "R004-215",
)
def test_an_execution_a_queue_a_table_a_bucket_and_two_workers(
    place: ExportCli, ministack: "Ministack"
) -> None:
    """One file is held back, so that there is time to check the job while it runs."""
    place.serve(*NAMES, slow=("slow",))
    (place.folder / "lists").mkdir()
    place.write_urls(*NAMES, "slow", path="lists/e-1.txt")
    cloud = Cloud(ministack)
    execution = cloud.begin(jobId="job-1", exportId="e-1", userId="u-1")
    to = ("--to", "s3://whole-files/exports", "--manifests", "lists")
    words = ("sqs:whole-jobs", "--jobs", "dynamodb:whole-", *to, "--until-empty")
    with run_service(place, *words, WORKER_POOL_SIZE="2", **ministack.env) as process:
        check_while_it_runs(place, cloud, execution, process.pid)
        token = cloud.read_row()["taskToken"]
        place.open()
        ran = wait_for_end(process)
    assert ran.code == 0, ran.err
    assert token not in ran.out + ran.err
    check_afterwards(place, cloud, execution)
    names = [json.loads(line)["event"] for line in ran.err.splitlines() if line.startswith("{")]
    assert names.count("task_completed") == 9
    assert names.count("pool_worker_started") == 2
    assert names.count("job_finished") == names.count("orchestrator_stopped") == 1


@pytest.mark.nightly
def test_when_a_service_is_killed_another_one_sends_the_heartbeats(
    place: ExportCli, ministack: "Ministack"
) -> None:
    """The job's message is hidden for a lease, so the other service does not have the job."""
    interval_seconds = 3.0
    place.server.on("/slow", make_trickling(place.gates["slow"]))
    (place.folder / "lists").mkdir()
    place.write_urls("slow", path="lists/e-1.txt")
    cloud = Cloud(ministack, "killed")
    cloud.begin(jobId="job-1", exportId="e-1", userId="u-1")
    words = ("sqs:killed-jobs", "--jobs", "dynamodb:killed-", "--to", "s3://whole-files/killed")
    words += ("--manifests", "lists", "--metrics-port", "0")
    env = {
        "WORKER_POOL_SIZE": "1",
        "STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS": f"{interval_seconds * 1000:.0f}",
        **ministack.env,
    }
    with (
        run_service(place, *words, **env) as holder,
        run_service(place, *words, **env) as other,
    ):
        counts = {process: Heartbeats(process) for process in (holder, other)}
        wait_until(lambda: counts[holder].count() + counts[other].count())
        if not counts[holder].count():  # the second one received the job
            holder, other = other, holder
        time.sleep(2 * interval_seconds)  # not received elsewhere, and a first listing is made
        before = counts[other].count()
        time.sleep(3 * interval_seconds)
        # The job makes progress. One is possible if the holder was slow to note it.
        assert counts[other].count() - before <= 1
        assert counts[holder].count() >= 4
        before = counts[other].count()
        holder.kill()
        killed_at = time.monotonic()
        wait_until(lambda: counts[other].count() > before)
        # HeartbeatSeconds is three intervals, after which the execution would time out.
        assert time.monotonic() - killed_at < 3 * interval_seconds
        assert int(cloud.read_row()["completedTasks"]) == 0


def test_a_second_signal_makes_the_message_visible_at_once(
    place: ExportCli, ministack: "Ministack"
) -> None:
    place.serve(slow=("slow",))
    (place.folder / "lists").mkdir()
    place.write_urls("slow", path="lists/e-1.txt")
    cloud = Cloud(ministack, "signal")
    cloud.begin(jobId="job-1", exportId="e-1", userId="u-1")
    words = ("sqs:signal-jobs", "--jobs", "dynamodb:signal-", "--to", "s3://whole-files/signal")
    words += ("--manifests", "lists", "--drain", "10m", "--concurrency", "1")
    with run_service(place, *words, WORKER_POOL_SIZE="1", **ministack.env) as process:
        wait_until(lambda: place.count_requests("slow")[0])
        process.send_signal(signal.SIGTERM)
        assert log_contains(process, b"draining: 1 running")
        process.send_signal(signal.SIGTERM)
        assert wait_for_end(process).code == 143
    [message] = cloud.sqs.receive_message(QueueUrl=cloud.queue).get("Messages", [])
    assert json.loads(message["Body"])["jobId"] == "job-1"


def make_trickling(gate: Event) -> Route:
    """Return a route that sends a byte every fifth of a second until the gate opens."""

    def route(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", "Content-Length: 100000")
        while not (gate.is_set() or wire.stopped.is_set()):
            wire.body(b"x")
            time.sleep(0.2)

    return route


class Heartbeats:
    """Reads from the metrics of a service how many heartbeats it sent."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, b"")
        self._address = next(line for line in lines if b"http://" in line).split()[-1].decode()

    def count(self) -> float:
        """Return the number of heartbeats so far."""
        with urllib.request.urlopen(self._address) as page:
            lines = page.read().decode().splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith("holdfast_heartbeat_sent_total")
        )


@contextmanager
def run_service(
    place: ExportCli, *words: str, **env: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run `holdfast export serve` in a process."""
    allowed = ("--allow-host", place.server.origin, "--log-format", "json")
    env = clean_env(**env)
    process = start(place.folder, "export", "serve", *words, *allowed, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def check_while_it_runs(place: ExportCli, cloud: Cloud, execution: str, pid: int) -> None:
    """Check the row, the execution and the workers while one file is held back."""
    seen: list[int] = []

    def is_held_back() -> bool:
        seen.append(int(cloud.read_row().get("completedTasks", 0)))
        return seen[-1] == len(NAMES) and bool(place.count_requests("slow")[0])

    wait_until(is_held_back)
    assert seen == sorted(seen)  # a counter never falls
    row = cloud.read_row()
    assert (row["status"], row["totalTasks"], row["failedTasks"]) == ("DOWNLOADING", "9", "0")
    assert (row["exportId"], row["userId"]) == ("e-1", "u-1")
    assert cloud.describe_execution(execution)["status"] == "RUNNING"
    workers = list_workers(pid)
    assert len(workers) == 2
    token = row["taskToken"].encode()
    assert all(token not in read_environment_and_arguments(worker) for worker in workers)


def check_afterwards(place: ExportCli, cloud: Cloud, execution: str) -> None:
    """Check the outcome, the objects and the row."""
    done = wait_until(lambda: _get_if_ended(cloud.describe_execution(execution)))
    assert done["status"] == "SUCCEEDED"
    assert json.loads(done["output"]) == {
        "jobId": "job-1",
        "status": "COMPLETED",
        "totalTasks": 9,
        "completedTasks": 9,
    }
    assert cloud.read_objects() == {
        f"exports/job-1/{name}": place.make_data(name) for name in (*NAMES, "slow")
    }
    row = cloud.read_row()
    assert (row["status"], row["completedTasks"]) == ("COMPLETED", "9")
    assert "taskToken" not in row


def read_environment_and_arguments(pid: int) -> bytes:
    """Return the environment and the arguments of a process."""
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


def _get_if_ended(execution: Any) -> Any:
    return None if execution["status"] == "RUNNING" else execution
