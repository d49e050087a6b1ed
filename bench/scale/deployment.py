"""The settings that the model works with, read from infra/*.yaml and from the package.

Nothing here is a copy of a setting. A change of a template or of a default changes the study.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from holdfast.chat.model import ConversationPolicy
from holdfast.exports.settings import HeartbeatSettings
from holdfast.queues.settings import SqsSettings
from holdfast.queues.sqs.queue import MAX_POLL_SECONDS, SQSQueue
from holdfast.queues.sqs.receipts import GATHER_SECONDS
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
class Functions:
    """The Lambda functions of the conversations."""

    memory_gb: float
    messaging_timeout_seconds: float
    sweeping_timeout_seconds: float
    sweep_every_seconds: float
    max_concurrency: Mapping[str, int]  # of each channel


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """How jobs are kept alive at Step Functions."""

    interval_seconds: float
    heartbeat_seconds: float
    timeout_seconds: float
    send_retry_seconds: tuple[float, ...]  # the waits before a failed SendMessage is repeated


@dataclass(frozen=True, slots=True)
class Alarms:
    """Thresholds of the alarms, to tell which failures an operator is told about."""

    work_age_seconds: float
    export_age_seconds: float
    chat_age_seconds: float
    heartbeat_failure_percent: float


@dataclass(frozen=True, slots=True)
class Deployment:
    """The whole deployment."""

    workers: Service
    exports: Service
    functions: Functions
    heartbeats: Heartbeats
    alarms: Alarms
    queue: SqsSettings
    chat: ConversationPolicy
    poll_seconds: float
    poll_batch: int
    slot_wait_seconds: float
    gather_seconds: float


@cache
def read_templates() -> Deployment:
    """Return the deployment as the templates describe it, with their defaults."""
    queue = Stack(load_template("queue"), Consumer="service")
    exports = Stack(load_template("exports"))
    chat = Stack(load_template("conversations"))
    settings = SqsSettings()
    return Deployment(
        workers=_read_service(queue),
        exports=_read_service(exports),
        functions=_read_functions(chat),
        heartbeats=_read_heartbeats(exports),
        alarms=Alarms(
            work_age_seconds=_read_threshold(queue, "OldestMessageAlarm"),
            export_age_seconds=_read_threshold(exports, "OldestMessageAlarm"),
            chat_age_seconds=_read_threshold(chat, "OldestMessageAlarm"),
            heartbeat_failure_percent=_read_threshold(exports, "HeartbeatFailureRateAlarm"),
        ),
        queue=settings,
        chat=ConversationPolicy(),
        poll_seconds=min(MAX_POLL_SECONDS, int(settings.lease_seconds / 3)),
        poll_batch=SQSQueue.poll_batch,
        slot_wait_seconds=SQSQueue.slot_wait_seconds,
        gather_seconds=GATHER_SECONDS,
    )


def _read_service(stack: Stack) -> Service:
    [task] = stack.find("AWS::ECS::TaskDefinition").values()
    [target] = stack.find("AWS::ApplicationAutoScaling::ScalableTarget").values()
    [policy] = stack.find("AWS::ApplicationAutoScaling::ScalingPolicy").values()
    rule = policy["TargetTrackingScalingPolicyConfiguration"]
    command = task["ContainerDefinitions"][0]["Command"]
    return Service(
        concurrency=int(_read_option(command, "--concurrency")),
        min_tasks=int(target["MinCapacity"]),
        max_tasks=int(target["MaxCapacity"]),
        backlog_per_task=float(rule["TargetValue"]),
        scale_out_seconds=float(rule["ScaleOutCooldown"]),
        scale_in_seconds=float(rule["ScaleInCooldown"]),
        vcpu=int(task["Cpu"]) / 1024,
        memory_gb=int(task["Memory"]) / 1024,
        storage_gb=task.get("EphemeralStorage", {}).get("SizeInGiB", 20),
    )


def _read_option(command: Sequence[str], name: str) -> str:
    [value] = [word.partition("=")[2] for word in command if word.startswith(f"{name}=")]
    return value


def _read_functions(stack: Stack) -> Functions:
    functions = stack.find("AWS::Lambda::Function")
    [rule] = stack.find("AWS::Events::Rule").values()
    minutes = re.fullmatch(r"rate\((\d+) minutes?\)", rule["ScheduleExpression"])
    assert minutes is not None
    mappings = {
        mapping["EventSourceArn"]: mapping["ScalingConfig"]["MaximumConcurrency"]
        for mapping in stack.find("AWS::Lambda::EventSourceMapping").values()
    }
    return Functions(
        memory_gb=functions["Messaging"]["MemorySize"] / 1024,
        messaging_timeout_seconds=float(functions["Messaging"]["Timeout"]),
        sweeping_timeout_seconds=float(functions["Sweeping"]["Timeout"]),
        sweep_every_seconds=60.0 * int(minutes[1]),
        max_concurrency={
            "whatsapp": mappings["WhatsAppQueue.Arn"],
            "sms": mappings["SmsQueue.Arn"],
            "email": mappings["EmailQueue.Arn"],
        },
    )


def _read_heartbeats(stack: Stack) -> Heartbeats:
    [task] = stack.find("AWS::ECS::TaskDefinition").values()
    variables = task["ContainerDefinitions"][0]["Environment"]
    settings = read_settings(
        HeartbeatSettings, {item["Name"]: item["Value"] for item in variables}
    )
    [machine] = stack.find("AWS::StepFunctions::StateMachine").values()
    state: dict[str, Any] = machine["Definition"]["States"]["StartExportJob"]
    return Heartbeats(
        interval_seconds=settings.interval_seconds,
        heartbeat_seconds=float(state["HeartbeatSeconds"]),
        timeout_seconds=float(state["TimeoutSeconds"]),
        send_retry_seconds=tuple(_iter_retry_seconds(state["Retry"])),
    )


def _iter_retry_seconds(rules: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yield the waits of the rule for SQS.SdkClientException and SQS.AmazonSQSException."""
    for rule in rules:
        if "SQS.SdkClientException" in rule["ErrorEquals"]:
            for attempt in range(rule["MaxAttempts"]):
                seconds = rule["IntervalSeconds"] * rule["BackoffRate"] ** attempt
                yield min(seconds, rule["MaxDelaySeconds"])


def _read_threshold(stack: Stack, name: str) -> float:
    return float(stack.find("AWS::CloudWatch::Alarm")[name]["Threshold"])


# -- the deployment that the load of the study needs


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that the study changes, because the template's does not carry the load."""

    setting: str
    template: str
    study: str
    reason: str


def size_for(load: "Mapping[str, float]", given: Deployment) -> tuple[Deployment, list[Change]]:
    """Return the deployment for a load, and what differs from the templates.

    `load` has `active_jobs`, `turns_per_second` and `messages_per_second`, each at its peak,
    and `turn_seconds` and `message_seconds`, the mean time of one.
    """
    heartbeats = replace(given.heartbeats, interval_seconds=180.0, heartbeat_seconds=540.0)
    export_tasks = -(-int(load["active_jobs"] * 1.1) // given.exports.concurrency)
    exports = replace(
        given.exports, min_tasks=export_tasks, max_tasks=-(-export_tasks * 6 // 5)
    )
    slots = load["messages_per_second"] * load["message_seconds"] * 2.5
    worker_tasks = max(given.workers.max_tasks, -(-int(slots) // given.workers.concurrency))
    workers = replace(given.workers, min_tasks=2, max_tasks=worker_tasks)
    invocations = int(load["turns_per_second"] * load["turn_seconds"] * 2)
    concurrency = {
        channel: max(limit, min(1000, invocations))
        for channel, limit in given.functions.max_concurrency.items()
    }
    functions = replace(given.functions, max_concurrency=concurrency)
    sized = replace(
        given, workers=workers, exports=exports, functions=functions, heartbeats=heartbeats
    )
    return sized, _list_changes(given, sized)


def _list_changes(given: Deployment, sized: Deployment) -> list[Change]:
    before, after = given, sized
    rows = [
        (
            "queue.yaml: MinTasks to MaxTasks",
            f"{before.workers.min_tasks} to {before.workers.max_tasks}",
            f"{after.workers.min_tasks} to {after.workers.max_tasks}",
            "two tasks, so that one may die, and room to work off a backlog",
        ),
        (
            "exports.yaml: MinTasks to MaxTasks",
            f"{before.exports.min_tasks} to {before.exports.max_tasks}",
            f"{after.exports.min_tasks} to {after.exports.max_tasks}",
            "all jobs and 10 % more; little above it, because a task that is never idle is "
            "never scaled in",
        ),
        (
            "exports.yaml: STEP_FUNCTIONS_HEARTBEAT_INTERVAL_MS",
            f"{before.heartbeats.interval_seconds * 1000:g}",
            f"{after.heartbeats.interval_seconds * 1000:g}",
            "each task reads every active job twice in an interval; and room for the "
            "heartbeats of jobs whose task was killed",
        ),
        (
            "exports.yaml: HeartbeatSeconds",
            f"{before.heartbeats.heartbeat_seconds:g}",
            f"{after.heartbeats.heartbeat_seconds:g}",
            "three times the interval",
        ),
        *(
            (
                f"conversations.yaml: MaximumConcurrency, {channel}",
                f"{limit}",
                f"{after.functions.max_concurrency[channel]}",
                "twice what the busiest hour needs, to work off a backlog",
            )
            for channel, limit in before.functions.max_concurrency.items()
        ),
    ]
    return [Change(*row) for row in rows if row[1] != row[2]]
