"""Compare the calls of a component with what its role allows.

A permission is an action and a resource. The recorded calls of a component, and the calls that
AWS makes with its role, are the permissions that are used. The policies of the role are the
permissions that are allowed, each with the wildcards that are written in it.
"""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from stack.deployment import ONLY_ON_MINISTACK, DeployedStack, get_client

_S3_ACTIONS = {
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "HeadObject": "GetObject",
    "HeadBucket": "ListBucket",
    "ListObjectsV2": "ListBucket",
}
_TRANSACTION_ACTIONS = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


class Permission(NamedTuple):
    """An action on a resource, which may have wildcards if a policy allows it."""

    action: str
    resource: str

    def includes(self, used: "Permission") -> bool:
        """Return whether this permission of a policy allows that use."""
        return self.action == used.action and fnmatchcase(used.resource, self.resource)


Permissions = frozenset[Permission]


def find_lacking(allowed: Permissions, used: Permissions) -> Permissions:
    """Return what is used and a role does not allow."""
    return frozenset(use for use in used if not any(each.includes(use) for each in allowed))


def find_unused(allowed: Permissions, used: Permissions) -> Permissions:
    """Return what a role allows without need."""
    return frozenset(each for each in allowed if not any(map(each.includes, used)))


def read_allowed(iam: Any, role: str) -> frozenset[Permission]:
    """Return the permissions in the policies of a role."""
    assert not iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    names = iam.list_role_policies(RoleName=role)["PolicyNames"]
    policies = [
        iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
        for name in names
        if name != ONLY_ON_MINISTACK
    ]
    return frozenset(
        Permission(action, resource)
        for policy in policies
        for statement in policy["Statement"]
        for action in _to_list(statement["Action"])
        for resource in _to_list(statement["Resource"])
    )


def read_used(path: Path) -> frozenset[Permission]:
    """Return the permissions that the calls in a file of the recorder need."""
    lines = path.read_text().splitlines() if path.exists() else []
    calls = (json.loads(line) for line in lines)
    return frozenset(
        permission
        for service, operation, params in calls
        for permission in _permissions_from_call(service, operation, params)
    )


def _permissions_from_call(
    service: str, operation: str, params: dict[str, Any]
) -> Iterator[Permission]:
    match service:
        case "sqs":
            name = params.get("QueueName") or params["QueueUrl"].rpartition("/")[2]
            yield Permission(f"sqs:{operation.removesuffix('Batch')}", make_arn("sqs", name))
        case "dynamodb":
            yield from _permissions_from_dynamodb(operation, params)
        case "s3":
            action = _S3_ACTIONS.get(operation, operation)
            path = [params["Bucket"]] + ([params["Key"]] if "Key" in params else [])
            yield Permission(f"s3:{action}", f"arn:aws:s3:::{'/'.join(path)}")
        case "secretsmanager":
            secret = make_arn("secretsmanager", f"secret:{params['SecretId']}")
            yield Permission(f"secretsmanager:{operation}", secret)
        case "stepfunctions":
            yield Permission(f"states:{operation}", "*")
        case _:
            raise AssertionError(f"what permission does {service} {operation} need?")


def _permissions_from_dynamodb(operation: str, params: dict[str, Any]) -> Iterator[Permission]:
    if operation == "TransactWriteItems":
        for item in params["TransactItems"]:
            ((kind, write),) = item.items()
            yield _permission_on_table(_TRANSACTION_ACTIONS[kind], write["TableName"])
    elif "RequestItems" in params:
        for table in params["RequestItems"]:
            yield _permission_on_table(operation, table)
    else:
        index = f"/index/{params['IndexName']}" if "IndexName" in params else ""
        yield _permission_on_table(operation, params["TableName"] + index)


def _permission_on_table(operation: str, table: str) -> Permission:
    return Permission(f"dynamodb:{operation}", make_arn("dynamodb", f"table/{table}"))


def make_arn(service: str, resource: str) -> str:
    """Return the ARN of a resource of the account that the stack is deployed to."""
    from support.ministack_server import ACCOUNT, REGION  # late, because it is a pytest plugin

    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# -- calls that are not recorded: of AWS itself, and a rare one

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
