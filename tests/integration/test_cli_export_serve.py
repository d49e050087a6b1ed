"""`holdfast export serve`: jobs from a queue, real processes and real signals.

R004-066…069 (a job from its message to its end), JB-16, JB-27 (a stop gives back), JB-37
(invalid messages), I-JB-13 (canaries).
"""

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from cli_kit import Cli, Ran, eventually, one_line
from export_cli_place import (
    CANARY,
    NO_AWS,
    TOKEN,
    ExportCli,
    await_line,
    children,
    ended,
    export_cli,
)
from moto import mock_aws

from holdfast import AnyMessage, MessageState, open_queue

STORE = "data/exports/jobs.db"


@pytest.fixture
def place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ExportCli]:
    for name, value in NO_AWS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with export_cli(Cli(tmp_path, capsys, monkeypatch)) as place:
        yield place


def push(place: ExportCli, job_id: str, *names: str, **fields: Any) -> None:
    tasks = [{"url": place.url(name), "key": name} for name in names]
    job = {"jobId": job_id, "exportId": "e-1", "userId": "u-1", "tasks": tasks, **fields}
    with open_queue("exports") as queue:
        queue.push(AnyMessage(id=job_id, **job))


def serve(place: ExportCli, *options: str) -> Ran:
    words = place.words("serve", "exports", "--to", "out", "--until-empty", *options)
    ran = place.cli(*words)
    assert CANARY not in ran.out + ran.err
    assert TOKEN not in ran.out + ran.err
    return ran


def test_jobs_are_done_below_their_ids_and_told_of_line_by_line(place: ExportCli) -> None:
    place.serve("a.txt", "b.txt", bad=("gone",))
    push(place, "job-1", "a.txt", "b.txt")
    push(place, "job-2", "a.txt", "gone")
    ran = serve(place, "--json", "--log-format", "json")
    assert ran.code == 0, ran.err
    assert ran.json["completed"] == 2
    assert place.files("out/job-1") == place.whole("a.txt", "b.txt")
    assert place.files("out/job-2") == place.whole("a.txt")
    events = [json.loads(line) for line in ran.err.splitlines()]
    ends = {e["job_id"]: e["status"] for e in events if e["event"] == "job_finished"}
    assert ends == {"job-1": "COMPLETED", "job-2": "FAILED"}
    listed = place.cli("export", "list", "--json").json
    assert {job["job"]: job["failed"] for job in listed} == {"job-1": 0, "job-2": 1}


def test_sigterm_gives_the_job_back_and_the_next_service_finishes_it(place: ExportCli) -> None:
    """JB-16, JB-27: not charged, at once, and nothing is fetched twice that was done."""
    place.serve("a.txt", slow=("slow",))
    push(place, "job-1", "a.txt", "slow")
    process = place.begin("serve", "exports", "--to", "out", "--drain", "200ms")
    place.done(1, STORE)
    eventually(lambda: place.asked("slow") == [1])
    process.send_signal(signal.SIGTERM)
    ran = ended(process)
    assert ran.code == 0, ran.err
    assert "draining: 1 running, up to 200 ms" in ran.err
    assert "given back 1" in ran.out
    assert CANARY not in ran.err
    assert children(process.pid) == []
    with open_queue("exports") as queue:
        [view] = queue.peek(MessageState.PENDING, 10)
        assert view.attempts == 0

    place.open()
    assert serve(place).code == 0
    assert place.files("out/job-1") == place.whole("a.txt", "slow")
    assert place.asked("a.txt") == [1]


def test_a_second_signal_stops_now(place: ExportCli) -> None:
    place.serve(slow=("slow",))
    push(place, "job-1", "slow")
    process = place.begin("serve", "exports", "--to", "out")
    eventually(lambda: place.asked("slow") == [1])
    process.send_signal(signal.SIGINT)
    await_line(process, b"draining: 1 running, up to 30 s")
    process.send_signal(signal.SIGTERM)
    assert ended(process).code == 143
    assert children(process.pid) == []


def test_what_is_no_job_becomes_a_dead_letter_with_a_reason(place: ExportCli) -> None:
    """JB-37: what is wrong is kept for a person, nothing of what was in it is told."""
    push(place, "../job", "a.txt")
    push(place, "job-2", taskToken=TOKEN)  # nobody here could answer it
    push(place, "job-3", tasks=[{"url": "http://a/b", "key": "../b"}])
    ran = serve(place, "--json")
    assert ran.json["dead_lettered"] == 2, ran.err
    with open_queue("exports") as queue:
        reasons = {view.id: str(view.reason) for view in queue.dead_letters()}
    assert "jobId" in reasons["../job"]
    assert "Step Functions is not configured" in reasons["job-2"]
    # A name is found out when the tasks are listed: the job says why it failed.
    [job] = place.stored(STORE)
    assert job.error is not None
    assert (job.job_id, job.error.code) == ("job-3", "InvalidJob")
    assert place.files() == {}


def test_a_job_without_tasks_is_looked_up_in_the_manifests(place: ExportCli) -> None:
    place.serve("a.txt")
    (place.folder / "lists").mkdir()
    place.urls("a.txt", path="lists/e-1.txt")
    push(place, "job-1", tasks=None)
    assert serve(place, "--manifests", "lists").code == 0
    assert place.files("out/job-1") == place.whole("a.txt")


def test_metrics_are_served_while_it_runs(place: ExportCli) -> None:
    place.serve("a.txt")
    push(place, "job-1", "a.txt")
    process = place.begin("serve", "exports", "--to", "out", "--metrics-port", "0")
    assert process.stderr is not None
    address = process.stderr.readline().decode().split()[-1]

    def done() -> bool:
        with urllib.request.urlopen(address) as page:
            return b'holdfast_jobs_finished_total{status="COMPLETED"} 1.0' in page.read()

    eventually(done)
    process.send_signal(signal.SIGTERM)
    assert ended(process).code == 0


@pytest.mark.parametrize(
    "words", [("sqs:exports",), ("exports", "--jobs", "dynamodb:")], ids=["queue", "store"]
)
def test_in_the_cloud_step_functions_must_be_there(
    place: ExportCli, words: tuple[str, ...]
) -> None:
    ran = place.cli("export", "serve", *words, "--to", "out", "--until-empty")
    assert ran.code == 2
    assert "no region for stepfunctions" in one_line(ran)


def test_tables_that_are_missing_are_told_before_a_job_is_taken(
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
    assert "`holdfast export tables --jobs dynamodb: --create`" in one_line(ran)


def test_an_execution_waits_for_the_job_and_is_answered(
    place: ExportCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R004-008, R004-211, I-JB-3: the example's state, moto's state machine and SQS; the
    token passes through the message, the store and the answer, and is nowhere to be read."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    place.serve("a.txt")
    (place.folder / "lists").mkdir()
    place.urls("a.txt", path="lists/e-1.txt")
    example = Path(__file__).parents[2] / "examples/export/state-machine.json"
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
        [message] = eventually(
            lambda: sqs.receive_message(QueueUrl=url, VisibilityTimeout=0).get("Messages")
        )
        token = json.loads(message["Body"])["taskToken"]
        words = ("serve", "sqs:export-jobs", "--to", "out", "--manifests", "lists")
        ran = place.cli(*place.words(*words, "--until-empty", "--json"))
        assert ran.code == 0, ran.err
        assert ran.json["completed"] == 1
        assert token not in ran.out + ran.err
        execution = eventually(
            lambda: _unless_running(client.describe_execution(executionArn=arn))
        )
    assert execution["status"] == "SUCCEEDED"
    assert place.files("out/job-1") == place.whole("a.txt")
    [job] = place.cli("export", "list", "--json").json
    assert (job["status"], job["token"]) == ("COMPLETED", None)
    assert job["callback"] == {"state": "sent", "attempts": 1, "in_doubt": False}


def _unless_running(execution: dict[str, Any]) -> dict[str, Any] | None:
    return None if execution["status"] == "RUNNING" else execution
