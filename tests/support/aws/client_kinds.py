"""Make the clients under test, of boto3's kind and of Holdfast's own.

Every contract suite passes with both. `make test` runs those in brackets with one only, and
`make nightly` with both:

    queue          simulator in this process (a client like boto3's), and over HTTP (lean)
                   moto over HTTP (lean)       LocalStack, nightly, with both
    jobs           ministack (lean)            DynamoDB Local, nightly, with both
                   moto in this process: outcomes, with boto3
    conversations  ministack (lean)            DynamoDB Local, nightly, with both
    callbacks      a loopback server with both
"""

from functools import partial
from typing import Any

import boto3
import pytest
from botocore.config import Config

from holdfast.aws.json_client.client import JsonClient
from holdfast.aws.json_client.settings import ClientSettings, EnvironmentCredentials
from holdfast.aws.json_client.transport import CallLimits

KINDS = ("boto3", "lean")
# For suites that repeat what another server proves, so that they do not double `make test`.
LEAN_BY_DAY = (pytest.param("boto3", marks=pytest.mark.nightly), "lean")


def make_server_client(
    kind: str, service: str, url: str, *, access_key: str = "000000000000"
) -> Any:
    """Make a client of one kind for the server at `url`, whatever the environment says.

    The lean one leaves the calls that it lacks to the other. Some servers take the access key
    for the account, so both must have the same.
    """
    make_boto3_client = partial(
        boto3.client,
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key="test",
        config=Config(connect_timeout=10, read_timeout=60, max_pool_connections=32),
    )
    if kind == "boto3":
        return make_boto3_client()
    keys = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": "test"}
    credentials = EnvironmentCredentials(keys)
    return JsonClient(
        service,
        ClientSettings(credentials, "us-east-1", url),
        lambda: credentials,
        CallLimits(connect_seconds=10.0, read_seconds=60.0, tries=4),
        make_boto3_client,
    )
