"""Make the lean client for a server of a test, whatever the environment says."""

from collections.abc import Callable
from typing import Any

from holdfast.aws.json_client.client import JsonClient, RetryPolicy
from holdfast.aws.json_client.settings import EnvironmentCredentials
from holdfast.aws.json_client.transport import Timeouts


def make_lean_client(
    service: str,
    url: str,
    make_boto3_client: Callable[[], Any] | None = None,
    *,
    access_key: str = "000000000000",
) -> JsonClient:
    """Make a client of the server at `url`. Calls it lacks go to boto3's client, if given.

    Some servers take the access key for the account, so both clients must have the same.
    """
    keys = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": "test"}
    return JsonClient(
        service,
        lambda: EnvironmentCredentials(keys),
        "us-east-1",
        url,
        Timeouts(connect_seconds=10.0, read_seconds=60.0),
        RetryPolicy(tries=4),
        make_boto3_client=make_boto3_client,
    )
