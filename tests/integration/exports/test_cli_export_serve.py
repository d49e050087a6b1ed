"""`holdfast export serve`: jobs from a queue, real processes and real signals.

 (a job from its message to its end), JB-16, JB-27 (a stop gives back), JB-37
(invalid messages), I-JB-13 (canaries).
"""

import json
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from export_cli import (
    CANARY,
    TOKEN,
    ExportCli,
    list_children,
    open_export_cli,
)
from moto import mock_aws

from holdfast import AnyMessage, MessageState, open_queue
from support.cli.commands import Cli, Ran, log_contains, require_one_line, wait_for_end
from support.paths import ROOT
from support.waiting import wait_until

STORE = "data/exports/jobs.db"


@pytest.fixture
def place(cli: Cli) -> Iterator[ExportCli]:
    with open_export_cli(cli) as place:
        yield place


def push(place: ExportCli, job_id: str, *names: str, **fields: Any) -> None:
    tasks = [{"url": place.make_url(name), "key": name} for name in names]
    job = {"jobId": job_id, "exportId": "e-1", "userId": "u-1", "tasks": tasks, **fields}
    with open_queue("exports") as queue:
        queue.push(AnyMessage(id=job_id, **job))


def serve(place: ExportCli, *options: str) -> Ran:
    words = place.make_arguments("serve", "exports", "--to", "out", "--until-empty", *options)
    ran = place.cli(*words)
    assert CANARY not in ran.out + ran.err
    assert TOKEN not in ran.out + ran.err
    return ran


def test_files_of_jobs_go_below_their_ids_and_each_event_is_a_line(place: ExportCli) -> None:
    place.serve("a.txt", "b.txt", bad=("gone",))
    push(place, "job-1", "a.txt", "b.txt")
    push(place, "job-2", "a.txt", "gone")
    ran = serve(place, "--json", "--log-format", "json")
    assert ran.code == 0, ran.err
    assert ran.json["completed"] == 2
    assert place.read_files("out/job-1") == place.expect_files("a.txt", "b.txt")
    assert place.read_files("out/job-2") == place.expect_files("a.txt")
    events = [json.loads(line) for line in ran.err.splitlines()]
    ends = {e["job_id"]: e["status"] for e in events if e["event"] == "job_finished"}
    assert ends == {"job-1": "COMPLETED", "job-2": "FAILED"}
    listed = place.cli("export", "list", "--json").json
    assert {job["job"]: job["failed"] for job in listed} == {"job-1": 0, "job-2": 1}


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_unexpected_error_is_logged_by_its_type_only(
    place: ExportCli, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    """Its text may quote the message, so there is no traceback either."""
    monkeypatch.setenv("HOLDFAST_MAX_ATTEMPTS", "1")
    (place.folder / "lists" / f"{CANARY}.jsonl").mkdir(parents=True)  # not a file
    push(place, "job-1", exportId=CANARY, tasks=None)
    ran = serve(place, "--manifests", "lists", "--log-format", style)
    assert "IsADirectoryError" in ran.err
    assert "Traceback" not in ran.err


def test_sigterm_gives_the_job_back_and_the_next_service_finishes_it(place: ExportCli) -> None:
    """No attempt is counted, and no finished file is fetched again (JB-16, JB-27)."""
    place.serve("a.txt", slow=("slow",))
    push(place, "job-1", "a.txt", "slow")
    process = place.start("serve", "exports", "--to", "out", "--drain", "200ms")
    place.wait_for_tasks(1, STORE)
    wait_until(lambda: place.count_requests("slow") == [1])
    process.send_signal(signal.SIGTERM)
    ran = wait_for_end(process)
    assert ran.code == 0, ran.err
    assert "draining: 1 running, up to 200 ms" in ran.err
    assert "given back 1" in ran.out
    assert CANARY not in ran.err
    assert list_children(process.pid) == []
    with open_queue("exports") as queue:
        [view] = queue.peek(MessageState.PENDING, 10)
        assert view.attempts == 0

    place.open()
    assert serve(place).code == 0
    assert place.read_files("out/job-1") == place.expect_files("a.txt", "slow")
    assert place.count_requests("a.txt") == [1]


def test_a_second_signal_stops_now_and_gives_the_job_back(place: ExportCli) -> None:
    """Another service need not wait until the lease ends."""
    place.serve("a.txt", slow=("slow",))
    push(place, "job-1", "a.txt", "slow")
    process = place.start("serve", "exports", "--to", "out", "--drain", "10m")
    place.wait_for_tasks(1, STORE)
    wait_until(lambda: place.count_requests("slow") == [1])
    process.send_signal(signal.SIGINT)
    assert log_contains(process, b"draining: 1 running, up to 10 min")
    process.send_signal(signal.SIGTERM)
    ran = wait_for_end(process)
    assert ran.code == 143
    assert "stopping now: giving back 1 running" in ran.err
    assert "given back 1" in ran.out
    assert list_children(process.pid) == []
    with open_queue("exports") as queue:
        [view] = queue.peek(MessageState.PENDING, 10)
        assert view.attempts == 0


def test_a_message_that_is_not_a_job_is_dead_lettered_with_a_reason(place: ExportCli) -> None:
    """The reason is kept for an operator, without the message's content (JB-37)."""
    push(place, "../job", "a.txt")
    push(
        place, "job-2", taskToken=TOKEN
    )  # without Step Functions, its result could not be sent
    push(place, "job-3", tasks=[{"url": "http://a/b", "key": "../b"}])
    ran = serve(place, "--json")
    assert ran.json["dead_lettered"] == 2, ran.err
    with open_queue("exports") as queue:
        reasons = {view.id: str(view.reason) for view in queue.dead_letters()}
    assert "jobId" in reasons["../job"]
    assert "Step Functions is not configured" in reasons["job-2"]
    # A bad name is noticed when the tasks are listed, and the job holds the error.
    [job] = place.read_jobs(STORE)
    assert job.error is not None
    assert (job.job_id, job.error.code) == ("job-3", "InvalidJob")
    assert place.read_files() == {}


def test_a_job_without_tasks_is_looked_up_in_the_manifests(place: ExportCli) -> None:
    place.serve("a.txt")
    (place.folder / "lists").mkdir()
    place.write_urls("a.txt", path="lists/e-1.txt")
    push(place, "job-1", tasks=None)
    assert serve(place, "--manifests", "lists").code == 0
    assert place.read_files("out/job-1") == place.expect_files("a.txt")


def test_metrics_are_served_while_it_runs(place: ExportCli) -> None:
    place.serve("a.txt")
    push(place, "job-1", "a.txt")
    process = place.start("serve", "exports", "--to", "out", "--metrics-port", "0")
    assert process.stderr is not None
    address = process.stderr.readline().decode().split()[-1]

    def done() -> bool:
        with urllib.request.urlopen(address) as page:
            return b'holdfast_jobs_finished_total{status="COMPLETED"} 1.0' in page.read()

    wait_until(done)
    process.send_signal(signal.SIGTERM)
    assert wait_for_end(process).code == 0


@pytest.mark.requirement("R004-266")
@pytest.mark.parametrize(
    "words", [("sqs:exports",), ("exports", "--jobs", "dynamodb:")], ids=["queue", "store"]
)
def test_with_sqs_or_dynamodb_step_functions_is_required(
    place: ExportCli, words: tuple[str, ...]
) -> None:
    ran = place.cli("export", "serve", *words, "--to", "out", "--until-empty")
    assert ran.code == 2
    assert "no region for stepfunctions" in require_one_line(ran)


def test_missing_tables_are_reported_before_a_job_is_taken(
    place: ExportCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        boto3.client("sqs").create_queue(QueueName="exports")
        words = ("serve", "sqs:exports", "--to", "out", "--jobs", "dynamodb:", "--until-empty")
        ran = place.cli("export", *words)
    assert ran.code == 2
    assert "`holdfast export tables --jobs dynamodb: --create`" in require_one_line(ran)


@pytest.mark.requirement("R004-008", "R004-077", "R004-079", "R004-211", "R004-246")
def test_an_execution_waits_for_the_job_and_is_answered(
    place: ExportCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example's state, moto's state machine and SQS. The token
    passes through the message, the store and the callback, but is never shown."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    place.serve("a.txt")
    (place.folder / "lists").mkdir()
    place.write_urls("a.txt", path="lists/e-1.txt")
    example = ROOT / "examples/export/state-machine.json"
    with mock_aws(config={"stepfunctions": {"execute_state_machine": True}}):
        sqs, client = boto3.client("sqs"), boto3.client("stepfunctions")
        url = sqs.create_queue(QueueName="export-jobs")["QueueUrl"]
        definition = json.loads(example.read_text())
        definition["States"]["StartExportJob"]["Parameters"]["QueueUrl"] = url
        machine = client.create_state_machine(
            name="export",
            definition=json.dumps(definition),
            roleArn="arn:aws:iam::123456789012:role/export",
        )["stateMachineArn"]
        asked = json.dumps({"jobId": "job-1", "exportId": "e-1", "userId": "u-1"})
        arn = client.start_execution(stateMachineArn=machine, name="one", input=asked)[
            "executionArn"
        ]
        [message] = wait_until(
            lambda: sqs.receive_message(QueueUrl=url, VisibilityTimeout=0).get("Messages")
        )
        token = json.loads(message["Body"])["taskToken"]
        words = ("serve", "sqs:export-jobs", "--to", "out", "--manifests", "lists")
        ran = place.cli(*place.make_arguments(*words, "--until-empty", "--json"))
        assert ran.code == 0, ran.err
        assert ran.json["completed"] == 1
        assert token not in ran.out + ran.err
        execution = wait_until(
            lambda: _unless_running(client.describe_execution(executionArn=arn))
        )
    assert execution["status"] == "SUCCEEDED"
    assert place.read_files("out/job-1") == place.expect_files("a.txt")
    [job] = place.cli("export", "list", "--json").json
    assert (job["status"], job["token"]) == ("COMPLETED", None)
    assert job["callback"] == {"state": "sent", "attempts": 1, "in_doubt": False}


def _unless_running(execution: dict[str, Any]) -> dict[str, Any] | None:
    return None if execution["status"] == "RUNNING" else execution
