"""Heartbeats and the timeouts of a state machine that moto runs.

Each mock has one execution, because moto's threads
end with the mock.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws

from holdfast.exports.errors import TokenClosed
from holdfast.exports.model import ExportJob, JobState, JobStatus, TaskToken
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from holdfast.exports.step_functions import StepFunctionsCallbacks
from holdfast.lease.clock import SYSTEM_CLOCK
from support.waiting import wait_until

HEARTBEAT_SECONDS = 6  # a heartbeat may be so late on a busy machine
INTERVAL_SECONDS = 0.25


class FakeJobReader:
    """The part of a job store that heartbeats use, with one job."""

    def __init__(self, job: ExportJob) -> None:
        self.job = job

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the job."""
        return self.job if job_id == self.job.job_id else None

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return the job if it has that status."""
        return [self.job] if self.job.status is status else []


@dataclass(slots=True)
class Execution:
    """One execution of the state machine."""

    client: Any
    arn: str
    token: TaskToken
    callbacks: StepFunctionsCallbacks

    @property
    def status(self) -> str:
        """The status that the service reports."""
        return str(self.client.describe_execution(executionArn=self.arn)["status"])

    def wait_for_end(self) -> str:
        """Wait for the end, and return the status."""
        wait_until(lambda: self.status != "RUNNING")
        return self.status


@contextmanager
def start_execution(**limits: int) -> Iterator[Execution]:
    """Start an execution, and receive its token from the queue."""
    with mock_aws(config={"stepfunctions": {"execute_state_machine": True}}):
        client, sqs = boto3.client("stepfunctions"), boto3.client("sqs")
        url = sqs.create_queue(QueueName="export-jobs")["QueueUrl"]
        state = {
            "Type": "Task",
            "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
            "Parameters": {
                "QueueUrl": url,
                "MessageBody": {"jobId": "job-1", "taskToken.$": "$$.Task.Token"},
            },
            "TimeoutSeconds": 30,
            **limits,
            "End": True,
        }
        machine = client.create_state_machine(
            name="export",
            definition=json.dumps({"StartAt": "Export", "States": {"Export": state}}),
            roleArn="arn:aws:iam::123456789012:role/export",
        )["stateMachineArn"]
        arn = client.start_execution(stateMachineArn=machine, name="one")["executionArn"]
        messages: list[Any] = []
        wait_until(
            lambda: (
                messages.extend(sqs.receive_message(QueueUrl=url).get("Messages", []))
                or messages
            )
        )
        token = TaskToken(json.loads(messages[0]["Body"])["taskToken"])
        execution = Execution(client, arn, token, StepFunctionsCallbacks(client))
        try:
            yield execution
        finally:
            if execution.status == "RUNNING":
                client.stop_execution(executionArn=arn)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


@contextmanager
def send_heartbeats(
    execution: Execution, closed: list[tuple[str, str]] | None = None
) -> Iterator[HeartbeatOrchestrator]:
    """Run an orchestrator; `closed` gets what it passes to `token_closed`."""
    noted = [] if closed is None else closed
    job = ExportJob.create(
        "job-1",
        "e",
        "u",
        JobState(JobStatus.DOWNLOADING),
        execution.token,
        now=SYSTEM_CLOCK.time(),
    )
    orchestrator = HeartbeatOrchestrator(
        FakeJobReader(job),
        execution.callbacks,
        interval_seconds=INTERVAL_SECONDS,
        token_closed=lambda job, code: noted.append((job.job_id, code)),
    )
    orchestrator.start()
    try:
        yield orchestrator
    finally:
        orchestrator.stop()


@pytest.mark.requirement(
    "R004-001",
    "R004-009",
    "R004-011",
    "R004-134",
    "R004-214",
    "R004-223",
    "R004-245",
    "R004-247",
    "R004-248",
)
@pytest.mark.nightly
def test_beats_keep_an_execution_alive_and_silence_times_it_out() -> None:
    """For three
    times HeartbeatSeconds. Then the next heartbeat finds the token closed, and reports it."""
    with start_execution(HeartbeatSeconds=HEARTBEAT_SECONDS) as execution:
        with send_heartbeats(execution):
            end = time.monotonic() + 3.2 * HEARTBEAT_SECONDS
            while time.monotonic() < end:
                assert execution.status == "RUNNING"
                time.sleep(0.2)
        assert execution.wait_for_end() in ("FAILED", "TIMED_OUT")
        closed: list[tuple[str, str]] = []
        with send_heartbeats(execution, closed):
            wait_until(lambda: closed)
        assert closed[0][0] == "job-1"
        assert closed[0][1] in ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")


@pytest.mark.requirement("R004-008", "R004-011")
@pytest.mark.nightly
def test_beats_do_not_prolong_timeout_seconds() -> None:
    """(JB-18)"""
    began = time.monotonic()
    with start_execution(HeartbeatSeconds=HEARTBEAT_SECONDS, TimeoutSeconds=8) as execution:
        closed: list[tuple[str, str]] = []
        with send_heartbeats(execution, closed):
            assert execution.wait_for_end() in ("FAILED", "TIMED_OUT")
            assert time.monotonic() - began > 7.5
            wait_until(lambda: closed)


@pytest.mark.requirement("R004-120", "R004-125", "R004-126")
def test_a_success_ends_the_execution_and_a_second_one_is_rejected() -> None:
    with start_execution(HeartbeatSeconds=HEARTBEAT_SECONDS) as execution:
        execution.callbacks.send_task_success(execution.token, {"jobId": "job-1"})
        assert execution.wait_for_end() == "SUCCEEDED"
        described = execution.client.describe_execution(executionArn=execution.arn)
        assert json.loads(described["output"]) == {"jobId": "job-1"}
        with pytest.raises(TokenClosed):
            execution.callbacks.send_task_success(execution.token, {"jobId": "job-1"})


@pytest.mark.requirement("R004-121")
def test_a_failure_fails_the_execution_with_our_error() -> None:
    """(moto drops the cause; the adapter's own tests cover it.)"""
    with start_execution(HeartbeatSeconds=HEARTBEAT_SECONDS) as execution:
        execution.callbacks.send_task_failure(
            execution.token, "JobCompletedWithFailures", "2 tasks failed"
        )
        assert execution.wait_for_end() == "FAILED"
        described = execution.client.describe_execution(executionArn=execution.arn)
        assert described["error"] == "JobCompletedWithFailures"
