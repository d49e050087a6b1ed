"""Use the deployed queues and exports: what succeeds, what fails, and what is interrupted."""

import json
from threading import Event
from typing import Any

from stack.cloud import Cloud
from stack.components import run_task
from stack.deployment import get_client
from stack.permissions import read_used
from support.ecs_agent import EcsAgent
from support.http_server import LoopbackServer, file, gated
from support.waiting import wait_until

_KINDS = ("done", "retry", "reject")


def use_function(cloud: Cloud) -> None:
    """A function handles the messages of a queue."""
    _push(cloud, "shop-work")
    _check_queue(cloud, "shop-work")


def use_service(cloud: Cloud) -> None:
    """A service handles the messages of a queue, and is protected from scale-in meanwhile."""
    _push(cloud, "desk-work")
    with (
        EcsAgent() as agent,
        run_task(cloud.stacks["desk"], cloud.folder, cloud.calls, ECS_AGENT_URI=agent.uri),
    ):
        _check_queue(cloud, "desk-work")
    assert agent.requests


def _push(cloud: Cloud, queue: str) -> None:
    for kind in _KINDS:
        ran = cloud.cli("push", f"sqs:{queue}", json.dumps({"id": kind, "kind": kind}))
        assert ran.code == 0, ran


def _check_queue(cloud: Cloud, queue: str) -> None:
    """Check that two messages are done, and that the third is a dead letter with a reason."""
    wait_until(lambda: cloud.count_messages(queue) == 0)
    wait_until(lambda: cloud.count_messages(f"{queue}-dead") == 1)
    dead = cloud.cli("dead", "list", f"sqs:{queue}", "--json")
    assert "not wanted" in dead.out, dead


def use_exports(cloud: Cloud) -> None:
    """A state machine starts jobs, and a service is killed while it works on one."""
    s3, names, gate = get_client(cloud.server, "s3"), ("a.bin", "b.bin"), Event()
    with LoopbackServer() as files, EcsAgent() as agent:
        files.on("/a.bin", file(b"a" * 50))
        files.on("/b.bin", gated(b"b" * 50, gate))
        lines = "".join(f"{files.url('/' + name)}\n" for name in names)
        s3.put_object(Bucket="shop-files", Key="lists/e-1.txt", Body=lines.encode())
        gone = files.url("/gone.bin").encode()
        s3.put_object(Bucket="shop-files", Key="lists/e-3.txt", Body=gone)
        service = (cloud.stacks["exports"], cloud.folder, cloud.calls)
        options = ("--allow-host", files.origin)
        env = {"ECS_AGENT_URI": agent.uri, "HOLDFAST_LEASE_SECONDS": "9"}
        with run_task(*service, *options, **env) as process:
            begun = _start_execution(cloud, jobId="job-1", exportId="e-1", userId="u-1")
            wait_until(lambda: is_used(cloud, "sqs:ChangeMessageVisibility"))  # a renewal
            process.kill()
            process.wait()
        gate.set()
        with run_task(*service, *options, **env):
            succeeded = _wait_for_execution(cloud, begun)
            missing = _start_execution(cloud, jobId="job-2", exportId="no-list", userId="u-1")
            failed = _wait_for_execution(cloud, missing)
            # It looks in S3 for a file of an earlier attempt before it reports the failure.
            refused = _start_execution(cloud, jobId="job-3", exportId="e-3", userId="u-1")
            assert _wait_for_execution(cloud, refused)["error"] == "SomeFilesFailed"
            cloud.send_garbage("shop-export-jobs")
    assert agent.requests
    assert succeeded["status"] == "SUCCEEDED", succeeded
    assert json.loads(succeeded["output"])["completedTasks"] == len(names)
    assert failed["status"] == "FAILED", failed
    objects = s3.list_objects_v2(Bucket="shop-files", Prefix="exports/")["Contents"]
    assert [each["Key"] for each in objects] == [f"exports/job-1/{name}" for name in names]


def is_used(cloud: Cloud, action: str) -> bool:
    """Return whether the service has made such a call."""
    return action in {used.action for used in read_used(cloud.calls / "shop-export.jsonl")}


def _start_execution(cloud: Cloud, **job: str) -> str:
    client = get_client(cloud.server, "stepfunctions")
    machine = cloud.stacks["exports"].resources["StateMachine"]
    begun = client.start_execution(stateMachineArn=machine, input=json.dumps(job))
    return str(begun["executionArn"])


def _wait_for_execution(cloud: Cloud, arn: str) -> Any:
    client = get_client(cloud.server, "stepfunctions")

    def get_if_ended() -> Any:
        execution = client.describe_execution(executionArn=arn)
        return None if execution["status"] == "RUNNING" else execution

    return wait_until(get_if_ended)
