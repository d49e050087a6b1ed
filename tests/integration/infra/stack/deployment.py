"""Deploy the templates of infra/ on ministack, as `sam deploy` does on AWS.

ministack accepts these and does not do them: TimeToLiveSpecification (set through the API of
DynamoDB here), PointInTimeRecoverySpecification, HealthCheck, LinuxParameters and Volumes of a
task, the DeletionPolicy of resources in nested stacks, and the tasks of a service, which are
run as processes here. It takes MaximumConcurrency from a parameter as text, so the default is
written there, and it wants sqs:SendMessageBatch for a batch, which is allowed, too.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from support.stack_template import load_template, read_template
from support.waiting import wait_until

if TYPE_CHECKING:
    from support.ministack_server import Ministack

CODE_BUCKET, CODE_KEY = "shop-code", "functions-1.zip"
PARTS = ("queue", "exports", "conversations")

_METRIC_MATH = "ministack creates no alarm on an expression of several metrics"
_SCALING = "ministack has no Application Auto Scaling"
NOT_ON_MINISTACK: Mapping[tuple[str, str], str] = {
    ("queue", "ScalableTasks"): _SCALING,
    ("queue", "BacklogPerTask"): _SCALING,
    ("exports", "ScalableTasks"): _SCALING,
    ("exports", "BacklogPerTask"): _SCALING,
    ("queue", "OldestMessageAlarm"): _METRIC_MATH,
    ("exports", "OldestMessageAlarm"): _METRIC_MATH,
    ("exports", "HeartbeatFailureRateAlarm"): _METRIC_MATH,
    ("conversations", "OldestMessageAlarm"): _METRIC_MATH,
    ("conversations", "LostLeasesAlarm"): _METRIC_MATH,
    ("conversations", "WebhookFailuresAlarm"): _METRIC_MATH,
}
"""The resources, by template and name, that are left out, with the reason for each."""
BATCHED = ("sqs:SendMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility")
ONLY_ON_MINISTACK = "only-on-ministack"
"""The name of a policy with actions that AWS does not have, such as sqs:SendMessageBatch."""


@cache
def get_client(server: "Ministack", service: str) -> Any:
    """Return a client of an operator. It is made once, because that takes time."""
    return server.client(service)


@dataclass(frozen=True, slots=True)
class DeployedStack:
    """A stack with everything that was created in it and in its nested stacks.

    `resources` has the physical ids by logical id, with the part before it: `Exports.Queue`.
    """

    server: "Ministack"
    stack_id: str
    resources: Mapping[str, str]

    @classmethod
    def deploy(cls, server: "Ministack", name: str, template: str, **parameters: str) -> Self:
        """Create the stack and wait for it. Raises AssertionError if it is rolled back."""
        client = get_client(server, "cloudformation")
        created = client.create_stack(
            StackName=name,
            TemplateBody=json.dumps(package(server, template)),
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value}
                for key, value in parameters.items()
            ],
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        )
        assert _wait(client, name) == "CREATE_COMPLETE", _explain(client, name)
        resources = dict(_list_resources(client, name))
        _let_rows_expire(get_client(server, "dynamodb"), template, resources)
        for logical, physical in resources.items():
            if logical.endswith("Role"):
                _allow_batches(get_client(server, "iam"), physical)
        return cls(server, created["StackId"], resources)

    def delete(self) -> None:
        """Delete the stack, and wait until it is gone."""
        client = get_client(self.server, "cloudformation")
        client.delete_stack(StackName=self.stack_id)
        assert _wait(client, self.stack_id) == "DELETE_COMPLETE"


def package(server: "Ministack", template: str) -> dict[str, Any]:
    """Return a template that ministack can deploy, with its nested templates in a bucket.

    ministack expands SAM in a stack, and not in its nested stacks, so those are expanded here.
    """
    return _package(server, template, read_template(template))


def _package(server: "Ministack", template: str, packaged: dict[str, Any]) -> dict[str, Any]:
    for part, resource in NOT_ON_MINISTACK:
        if part == template:
            del packaged["Resources"][resource]
    _write_concurrency(packaged["Resources"], packaged["Parameters"])
    for resource in packaged["Resources"].values():
        if resource["Type"] == "AWS::CloudFormation::Stack":
            file = resource["Properties"]["TemplateURL"]
            part = file.removesuffix(".yaml")
            body = json.dumps(_package(server, part, deepcopy(load_template(part))))
            get_client(server, "s3").put_object(Bucket=CODE_BUCKET, Key=file, Body=body)
            resource["Properties"]["TemplateURL"] = f"{server.url}/{CODE_BUCKET}/{file}"
    return packaged


def _write_concurrency(tree: Any, parameters: Mapping[str, Any]) -> None:
    """Replace each parameter that is a MaximumConcurrency by its default, as a number."""
    match tree:
        case {"MaximumConcurrency": {"Ref": name}}:
            tree["MaximumConcurrency"] = parameters[name]["Default"]
        case dict():
            for part in tree.values():
                _write_concurrency(part, parameters)
        case list():
            for part in tree:
                _write_concurrency(part, parameters)


def _allow_batches(iam: Any, role: str) -> None:
    """Allow what ministack requires for a batch. AWS requires no more than for a call."""
    documents = [
        iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
        for name in iam.list_role_policies(RoleName=role)["PolicyNames"]
    ]
    allowed = [
        {"Effect": "Allow", "Action": batched, "Resource": statement["Resource"]}
        for document in documents
        for statement in document["Statement"]
        if (batched := [f"{each}Batch" for each in BATCHED if each in statement["Action"]])
    ]
    if allowed:
        document = {"Version": "2012-10-17", "Statement": allowed}
        iam.put_role_policy(
            RoleName=role, PolicyName=ONLY_ON_MINISTACK, PolicyDocument=json.dumps(document)
        )


def _let_rows_expire(dynamodb: Any, template: str, resources: Mapping[str, str]) -> None:
    """Do what ministack ignores: TimeToLiveSpecification of the tables of a template."""
    for name, resource in read_template(template)["Resources"].items():
        if expiry := resource["Properties"].get("TimeToLiveSpecification"):
            dynamodb.update_time_to_live(
                TableName=resources[name], TimeToLiveSpecification=expiry
            )


def upload_code(server: "Ministack", files: Mapping[str, str]) -> None:
    """Upload the zip file of the functions. Holdfast itself comes from this environment."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    client = get_client(server, "s3")
    client.create_bucket(Bucket=CODE_BUCKET)
    client.put_object(Bucket=CODE_BUCKET, Key=CODE_KEY, Body=zipped.getvalue())


def _wait(client: Any, name: str) -> str:
    def get_final_status() -> str:
        (stack,) = client.describe_stacks(StackName=name)["Stacks"]
        status = str(stack["StackStatus"])
        return "" if "IN_PROGRESS" in status else status

    return wait_until(get_final_status)


def _explain(client: Any, name: str) -> str:
    events = client.describe_stack_events(StackName=name)["StackEvents"]
    return "\n".join(
        f"{event['LogicalResourceId']}: {event.get('ResourceStatusReason')}"
        for event in events
        if "FAILED" in event["ResourceStatus"]
    )


def _list_resources(client: Any, name: str, prefix: str = "") -> Any:
    for each in client.describe_stack_resources(StackName=name)["StackResources"]:
        logical, physical = each["LogicalResourceId"], each["PhysicalResourceId"]
        yield prefix + logical, physical
        if each["ResourceType"] == "AWS::CloudFormation::Stack":
            yield from _list_resources(client, physical, f"{logical}.")
