"""The service as it is deployed: a state machine, SQS, DynamoDB and S3 behind one real process.

ministack's services, none of which anybody here wrote. What Step Functions does about
silence is proved on moto's (test_state_machine_moto.py); ministack does not mind silence.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_kit import Cli, clean_env, eventually, start
from export_cli_place import NO_AWS, ExportCli, ended, export_cli, workers_of

from holdfast.adapters.aws.dynamodb.tables import create_tables

if TYPE_CHECKING:
    from ministack_server import Ministack

pytest_plugins = ["ministack_server"]

NAMES = tuple(f"{n}.txt" for n in range(8))
EXAMPLE = Path(__file__).parents[2] / "examples/export/state-machine.json"


@pytest.fixture
def place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ExportCli]:
    with export_cli(Cli(tmp_path, capsys, monkeypatch)) as place:
        yield place


class Cloud:
    """What somebody sets up before the service starts, and what they see of it then."""

    def __init__(self, ministack: "Ministack") -> None:
        self.sqs, self.s3 = ministack.client("sqs"), ministack.client("s3")
        self.dynamodb = ministack.client("dynamodb")
        self.step_functions = ministack.client("stepfunctions")
        self.queue = self.sqs.create_queue(QueueName="whole-jobs")["QueueUrl"]
        self.s3.create_bucket(Bucket="whole-files")
        create_tables(
            self.dynamodb, jobs_table="whole-ExportJobs", tasks_table="whole-ExportTasks"
        )

    def begin(self, **job: str) -> str:
        definition = json.loads(EXAMPLE.read_text())
        definition["States"]["StartExportJob"]["Parameters"]["QueueUrl"] = self.queue
        machine = self.step_functions.create_state_machine(
            name="whole",
            definition=json.dumps(definition),
            roleArn="arn:aws:iam::000000000000:role/whole",
        )["stateMachineArn"]
        begun = self.step_functions.start_execution(
            stateMachineArn=machine, input=json.dumps(job)
        )
        return str(begun["executionArn"])

    def execution(self, arn: str) -> Any:
        return self.step_functions.describe_execution(executionArn=arn)

    def row(self) -> dict[str, Any]:
        key = {"jobId": {"S": "job-1"}}
        answer = self.dynamodb.get_item(
            TableName="whole-ExportJobs", Key=key, ConsistentRead=True
        )
        return {
            name: next(iter(value.values())) for name, value in answer.get("Item", {}).items()
        }

    def objects(self) -> dict[str, bytes]:
        listed = self.s3.list_objects_v2(Bucket="whole-files").get("Contents", [])
        return {
            one["Key"]: self.s3.get_object(Bucket="whole-files", Key=one["Key"])["Body"].read()
            for one in listed
        }


def test_an_execution_a_queue_a_table_a_bucket_and_two_workers(
    place: ExportCli, ministack: "Ministack"
) -> None:
    """R004-006, R004-007, R004-012, R004-014, R004-015, R004-022, R004-029, R004-035,
    R004-073, R004-077…082, R004-101, R004-103…105, R004-120, R004-125, R004-205, R004-215,
    R004-216, R004-245.

    One file is held back, so that there is time to look at the job while it runs.
    """
    place.serve(*NAMES, slow=("slow",))
    (place.folder / "lists").mkdir()
    place.urls(*NAMES, "slow", path="lists/e-1.txt")
    cloud = Cloud(ministack)
    execution = cloud.begin(jobId="job-1", exportId="e-1", userId="u-1")
    to = ("--to", "s3://whole-files/exports", "--manifests", "lists")
    words = ("sqs:whole-jobs", "--jobs", "dynamodb:whole-", *to, "--until-empty")
    with serving(place, *words, WORKER_POOL_SIZE="2", **ministack.env) as process:
        look_while_it_runs(place, cloud, execution, process.pid)
        token = cloud.row()["taskToken"]
        place.open()
        ran = ended(process)
    assert ran.code == 0, ran.err
    assert token not in ran.out + ran.err
    look_afterwards(place, cloud, execution)
    names = [json.loads(line)["event"] for line in ran.err.splitlines() if line.startswith("{")]
    assert names.count("task_completed") == 9
    assert names.count("pool_worker_started") == 2
    assert names.count("job_finished") == names.count("orchestrator_stopped") == 1


@contextmanager
def serving(place: ExportCli, *words: str, **env: str) -> "Iterator[subprocess.Popen[bytes]]":
    allowed = ("--allow-host", place.server.origin, "--log-format", "json")
    env = clean_env(**{**NO_AWS, **env})
    process = start(place.folder, "export", "serve", *words, *allowed, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def look_while_it_runs(place: ExportCli, cloud: Cloud, execution: str, pid: int) -> None:
    seen: list[int] = []

    def held_up() -> bool:
        seen.append(int(cloud.row().get("completedTasks", 0)))
        return seen[-1] == len(NAMES) and bool(place.asked("slow")[0])

    eventually(held_up)
    assert seen == sorted(seen)  # a counter never falls
    row = cloud.row()
    assert (row["status"], row["totalTasks"], row["failedTasks"]) == ("DOWNLOADING", "9", "0")
    assert (row["exportId"], row["userId"]) == ("e-1", "u-1")
    assert cloud.execution(execution)["status"] == "RUNNING"
    workers = workers_of(pid)
    assert len(workers) == 2
    token = row["taskToken"].encode()
    assert all(token not in environment_and_arguments(worker) for worker in workers)


def look_afterwards(place: ExportCli, cloud: Cloud, execution: str) -> None:
    done = eventually(lambda: _ended(cloud.execution(execution)))
    assert done["status"] == "SUCCEEDED"
    assert json.loads(done["output"]) == {
        "jobId": "job-1",
        "status": "COMPLETED",
        "totalTasks": 9,
        "completedTasks": 9,
    }
    assert cloud.objects() == {
        f"exports/job-1/{name}": place.data(name) for name in (*NAMES, "slow")
    }
    row = cloud.row()
    assert (row["status"], row["completedTasks"]) == ("COMPLETED", "9")
    assert "taskToken" not in row


def environment_and_arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


def _ended(execution: Any) -> Any:
    return None if execution["status"] == "RUNNING" else execution
