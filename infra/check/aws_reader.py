"""Reads what is deployed. An error names the resource and the permission that is missing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws.clients import make_retrying_client
from holdfast.adapters.aws.errors import get_error_code
from holdfast.doctor.runner import CheckFailed, explain_aws_errors

STACK = "AWS::CloudFormation::Stack"
QUEUE = "AWS::SQS::Queue"
FUNCTION = "AWS::Lambda::Function"
EVENT_SOURCE = "AWS::Lambda::EventSourceMapping"
SERVICE = "AWS::ECS::Service"
MACHINE = "AWS::StepFunctions::StateMachine"
ALARM = "AWS::CloudWatch::Alarm"
TOPIC = "AWS::SNS::Topic"

# Services whose permissions begin with another word than the name of their client.
_PREFIXES = {"stepfunctions": "states"}


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of a stack. `physical_id` is its name, ARN or URL, depending on its type."""

    kind: str
    physical_id: str


class AwsReader:
    """Calls that read. It makes one client for each service, when it is needed first."""

    def __init__(self, make_client: Callable[[str], Any] = make_retrying_client) -> None:
        self._make_client = make_client
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """Return the client of a service. Raises ConfigError if it cannot be made."""
        if service not in self._clients:
            self._clients[service] = self._make_client(service)
        return self._clients[service]

    def read(self, service: str, operation: str, subject: str, **arguments: Any) -> Any:
        """Return the response of a call. Raises CheckFailed, which names the permission."""
        client = self.client(service)
        action = client.meta.method_to_api_mapping[operation]
        with explain_aws_errors(
            f"{subject} cannot be read",
            denied=f"allow this user {_PREFIXES.get(service, service)}:{action}",
            otherwise="deploy the stack again if it was deleted by hand; otherwise check the "
            "region and the credentials",
        ):
            return getattr(client, operation)(**arguments)

    def list_resources(self, stack: str) -> Iterator[Resource]:
        """Yield the resources of a stack and of the stacks that it nests."""
        token: dict[str, str] = {}
        while True:
            page = self.read(
                "cloudformation", "list_stack_resources", stack, StackName=stack, **token
            )
            for each in page["StackResourceSummaries"]:
                kind, physical_id = each["ResourceType"], each.get("PhysicalResourceId", "")
                if not physical_id or each["ResourceStatus"] == "DELETE_COMPLETE":
                    continue
                if kind == STACK:
                    yield from self.list_resources(physical_id)
                else:
                    yield Resource(kind, physical_id)
            if not (next_token := page.get("NextToken")):
                return
            token = {"NextToken": next_token}

    def describe_stack(self, stack: str) -> Any:
        """Return the description of a stack. Raises CheckFailed, also if it does not exist."""
        try:
            response = self.read("cloudformation", "describe_stacks", stack, StackName=stack)
        except CheckFailed as error:
            if get_error_code(error.__cause__ or error) == "ValidationError":
                remedy = "check the name and the region: `aws cloudformation list-stacks`"
                raise CheckFailed(f"there is no stack {stack}", remedy) from error
            raise
        return response["Stacks"][0]


def shorten_arn(text: str) -> str:
    """Return the name of a resource from its ARN or URL, and a name as it is."""
    return text.rstrip("/").rpartition("/")[2].rpartition(":")[2]
