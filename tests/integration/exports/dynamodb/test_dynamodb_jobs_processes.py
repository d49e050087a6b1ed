"""DynamoDBJobs without a server, and after a fork."""

import os

import boto3
import pytest
from botocore.config import Config

from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.errors import StoreUnavailable
from holdfast.store.dynamodb.client import DynamoDBClient
from holdfast.testing import ManualClock


def test_an_unreachable_store_is_unavailable(clock: ManualClock) -> None:
    unreachable = boto3.client(
        "dynamodb",
        region_name="us-east-1",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(StoreUnavailable, match="EndpointConnectionError"):
        DynamoDBJobs(client=unreachable, clock=clock).find_by_id("job")


def test_a_forked_child_makes_a_client_of_its_own(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = DynamoDBClient(None, clock, tables_command="holdfast export tables")
    parent_client = client.client
    assert client.client is parent_client
    if (pid := os.fork()) == 0:
        try:
            has_own_client = (
                client.client is not parent_client and client.client is client.client
            )
        except BaseException:
            has_own_client = False
        os._exit(0 if has_own_client else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.client is parent_client
    client.close()
    assert client.client is not parent_client
    client.close()
