"""The settings that the model works with, read from infra/*.yaml and from the package.

Nothing here is a copy of a setting. A change of a template or of a default changes the study.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from holdfast.chat.model import ConversationPolicy
from holdfast.exports.settings import HeartbeatSettings
from holdfast.queues.settings import SqsSettings
from holdfast.queues.sqs.queue import MAX_POLL_SECONDS
from holdfast.settings import read_settings
from support.stack_template import Stack, load_template


@dataclass(frozen=True, slots=True)
class Service:
    """A Fargate service: its size, and the rule by which it scales."""

    concurrency: int  # messages at a time in each task
    min_tasks: int
    max_tasks: int
    backlog_per_task: float
    scale_out_seconds: float
    scale_in_seconds: float
    vcpu: float
    memory_gb: float
    storage_gb: float


@dataclass(frozen=True, slots=True)
class Deployment:
    """The whole deployment."""

    workers: Service
    exports: Service
    # The functions of the conversations.
    function_gb: float
    messaging_timeout_seconds: float
    sweeping_timeout_seconds: float
    sweep_every_seconds: float
    max_concurrency: Mapping[str, int]  # of each channel
    # How jobs are kept alive at Step Functions.
    interval_seconds: float
    heartbeat_seconds: float
    timeout_seconds: float
    send_retry_seconds: tuple[float, ...]  # the waits before a failed SendMessage is repeated
    queue: SqsSettings
    chat: ConversationPolicy
    poll_seconds: float


@cache
def read_templates() -> Deployment:
    """Return the deployment as the templates describe it, with their defaults."""
    queue = Stack(load_template("queue"), Consumer="service")
    exports = Stack(load_template("exports"))
    settings = SqsSettings()
    return Deployment(
        workers=_read_service(queue),
        exports=_read_service(exports),
        **_read_functions(Stack(load_template("conversations"))),
        **_read_heartbeats(exports),
        queue=settings,
        chat=ConversationPolicy(),
        poll_seconds=min(MAX_POLL_SECONDS, int(settings.lease_seconds / 3)),
    )


def _read_service(stack: Stack) -> Service:
    [task] = stack.find("AWS::ECS::TaskDefinition").values()
    [target] = stack.find("AWS::ApplicationAutoScaling::ScalableTarget").values()
    [policy] = stack.find("AWS::ApplicationAutoScaling::ScalingPolicy").values()
    rule = policy["TargetTrackingScalingPolicyConfiguration"]
    command = " ".join(task["ContainerDefinitions"][0]["Command"])
    return Service(
        concurrency=int(re.findall(r"--concurrency=(\d+)", command)[0]),
        min_tasks=int(target["MinCapacity"]),
        max_tasks=int(target["MaxCapacity"]),
        backlog_per_task=float(rule["TargetValue"]),
        scale_out_seconds=float(rule["ScaleOutCooldown"]),
        scale_in_seconds=float(rule["ScaleInCooldown"]),
        vcpu=int(task["Cpu"]) / 1024,
        memory_gb=int(task["Memory"]) / 1024,
        storage_gb=task.get("EphemeralStorage", {}).get("SizeInGiB", 20),
    )


def _read_functions(stack: Stack) -> dict[str, Any]:
    functions = stack.find("AWS::Lambda::Function")
    [rule] = stack.find("AWS::Events::Rule").values()
    [minutes] = re.findall(r"rate\((\d+) minutes?\)", rule["ScheduleExpression"])
    mappings = {
        mapping["EventSourceArn"]: mapping["ScalingConfig"]["MaximumConcurrency"]
        for mapping in stack.find("AWS::Lambda::EventSourceMapping").values()
    }
    return {
        "function_gb": functions["Messaging"]["MemorySize"] / 1024,
        "messaging_timeout_seconds": float(functions["Messaging"]["Timeout"]),
        "sweeping_timeout_seconds": float(functions["Sweeping"]["Timeout"]),
        "sweep_every_seconds": 60.0 * int(minutes),
        "max_concurrency": {
            "whatsapp": mappings["WhatsAppQueue.Arn"],
            "sms": mappings["SmsQueue.Arn"],
            "email": mappings["EmailQueue.Arn"],
        },
    }


def _read_heartbeats(stack: Stack) -> dict[str, Any]:
    [task] = stack.find("AWS::ECS::TaskDefinition").values()
    variables = task["ContainerDefinitions"][0]["Environment"]
    settings = read_settings(
        HeartbeatSettings, {item["Name"]: item["Value"] for item in variables}
    )
    [machine] = stack.find("AWS::StepFunctions::StateMachine").values()
    state: dict[str, Any] = machine["Definition"]["States"]["StartExportJob"]
    return {
        "interval_seconds": settings.interval_seconds,
        "heartbeat_seconds": float(state["HeartbeatSeconds"]),
        "timeout_seconds": float(state["TimeoutSeconds"]),
        "send_retry_seconds": tuple(_iter_retry_seconds(state["Retry"])),
    }


def _iter_retry_seconds(rules: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yield the waits of the rule for SQS.SdkClientException and SQS.AmazonSQSException."""
    for rule in rules:
        if "SQS.SdkClientException" in rule["ErrorEquals"]:
            for attempt in range(rule["MaxAttempts"]):
                seconds = rule["IntervalSeconds"] * rule["BackoffRate"] ** attempt
                yield min(seconds, rule["MaxDelaySeconds"])


# -- the deployment that the load of the study needs


def size_for(
    given: Deployment, *, active_jobs: float, invocations: float, slots: float
) -> Deployment:
    """Return the deployment for a load.

    `invocations` and `slots` are those of the conversations and of the work queue that are
    busy at once at noon.
    """
    export_tasks = -(-int(active_jobs * 1.1) // given.exports.concurrency)
    worker_tasks = -(-int(slots * 2.5) // given.workers.concurrency)
    return replace(
        given,
        workers=replace(
            given.workers, min_tasks=2, max_tasks=max(given.workers.max_tasks, worker_tasks)
        ),
        exports=replace(
            given.exports, min_tasks=export_tasks, max_tasks=-(-export_tasks * 6 // 5)
        ),
        interval_seconds=180.0,
        heartbeat_seconds=540.0,
        max_concurrency={
            channel: max(limit, min(1000, int(invocations * 2)))
            for channel, limit in given.max_concurrency.items()
        },
    )


_Read = Callable[[Deployment], object]
_SETTINGS: Sequence[tuple[str, _Read, str]] = [
    (
        "queue.yaml: MinTasks to MaxTasks",
        lambda d: f"{d.workers.min_tasks} to {d.workers.max_tasks}",
        "two tasks, so that one may die, and room to work off a backlog",
    ),
    (
        "exports.yaml: MinTasks to MaxTasks",
        lambda d: f"{d.exports.min_tasks} to {d.exports.max_tasks}",
        "all jobs and 10 % more; little above it, because a task that is never idle is never "
        "scaled in",
    ),
    (
        "exports.yaml: STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS",
        lambda d: f"{d.interval_seconds * 1000:g}",
        "each task reads every active job twice in an interval; and room for the heartbeats "
        "of jobs whose task was killed",
    ),
    (
        "exports.yaml: HeartbeatSeconds",
        lambda d: f"{d.heartbeat_seconds:g}",
        "three times the interval",
    ),
    (
        "conversations.yaml: MaximumConcurrency of each channel",
        lambda d: ", ".join(map(str, sorted(set(d.max_concurrency.values())))),
        "twice what the busiest hour needs, to work off a backlog",
    ),
]


def list_changes(given: Deployment, sized: Deployment) -> list[tuple[str, str, str, str]]:
    """Return the settings that differ: their names, both values, and the reason."""
    return [
        (name, str(read(given)), str(read(sized)), reason)
        for name, read, reason in _SETTINGS
        if read(given) != read(sized)
    ]
