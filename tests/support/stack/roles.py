"""The calls with the roles of a stack that are not recorded: of AWS itself, and a rare one."""

from collections.abc import Iterator
from typing import Any

from support.stack.deployment import DeployedStack, get_client
from support.stack.permissions import Permission, make_arn

_POLLING = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
_LOGGING = ("logs:CreateLogStream", "logs:PutLogEvents")
_PULLING = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:GetDownloadUrlForLayer",
)


def iter_calls_of_lambda(stack: DeployedStack, function: str) -> Iterator[Permission]:
    """Lambda receives the messages of a mapping and writes the log, with the same role."""
    client = get_client(stack.server, "lambda")
    name = stack.resources[function]
    mappings = client.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
    for mapping in mappings:
        yield from (Permission(action, mapping["EventSourceArn"]) for action in _POLLING)
    yield from iter_log_calls(stack, "Log" if "Log" in stack.resources else f"{function}Log")


def iter_calls_of_ecs(stack: DeployedStack) -> Iterator[Permission]:
    """ECS pulls the image and writes the log with the role that starts the task."""
    yield Permission("ecr:GetAuthorizationToken", "*")
    yield from (Permission(action, make_arn("ecr", "repository/any")) for action in _PULLING)
    yield from iter_log_calls(stack, "Log")


def iter_calls_of_step_functions(definition: Any) -> Iterator[Permission]:
    """Step Functions sends the message of a state with the role of the state machine."""
    for state in definition["States"].values():
        if "sqs:sendMessage" in state.get("Resource", ""):
            queue = state["Parameters"]["QueueUrl"].rpartition("/")[2]
            yield Permission("sqs:SendMessage", make_arn("sqs", queue))


def iter_calls_of_rollout(queue: str) -> Iterator[Permission]:
    """A worker sends a message that is newer than its code again, with a delay.

    This is not recorded, because it takes two versions of the code, and the message would wait
    for the newer one forever.
    """
    yield Permission("sqs:SendMessage", make_arn("sqs", queue))


def iter_log_calls(stack: DeployedStack, resource: str) -> Iterator[Permission]:
    """Return the calls that write a log."""
    group = make_arn("logs", f"log-group:{stack.resources[resource]}:log-stream:any")
    yield from (Permission(action, group) for action in _LOGGING)
