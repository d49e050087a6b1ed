"""Reads what is deployed. An error names the resource and the permission that is missing."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from holdfast.aws.errors import get_error_code
from holdfast.doctor.checks import CheckFailed
from holdfast.doctor.stores import explain_aws_errors

# Services whose permissions begin with another word than the name of their client.
_PREFIXES = {"stepfunctions": "states"}


class AwsReader:
    """Calls that read. It makes one client for each service, when it is needed first."""

    def __init__(self, make_client: Callable[[str], Any]) -> None:
        self.client = cache(make_client)

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

    def list_resources(self, stack: str) -> Iterator[tuple[str, str]]:
        """Yield the resources of a stack and of the stacks that it nests.

        Each is its type and its physical id, which is a name, an ARN or a URL.
        """
        token: dict[str, str] = {}
        while True:
            page = self.read(
                "cloudformation", "list_stack_resources", stack, StackName=stack, **token
            )
            for each in page["StackResourceSummaries"]:
                kind, physical_id = each["ResourceType"], each.get("PhysicalResourceId", "")
                if not physical_id or each["ResourceStatus"] == "DELETE_COMPLETE":
                    continue
                if kind == "AWS::CloudFormation::Stack":
                    yield from self.list_resources(physical_id)
                else:
                    yield kind, physical_id
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
