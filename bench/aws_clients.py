"""The two AWS clients of Holdfast, each in a separate process that calls a local server."""

import os
from collections.abc import Callable
from typing import Any

LEAN = "lean client (default)"
BOTO3 = "boto3's client"


def make_client(name: str, endpoint: str, make: Callable[[], Any]) -> Any:
    """Make a client as Holdfast does, in the environment that selects the one with this name.

    The environment of this process stays changed.
    """
    os.environ.update(
        AWS_ACCESS_KEY_ID="bench",
        AWS_SECRET_ACCESS_KEY="bench",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_ENDPOINT_URL=endpoint,
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        NO_PROXY="127.0.0.1",
        HOLDFAST_AWS_CLIENT="boto3" if name == BOTO3 else "auto",
    )
    client = make()
    is_boto3 = type(client).__module__.startswith("botocore.")
    assert is_boto3 == (name == BOTO3), f"{name}: got a {type(client)}"
    return client
