"""Run the store contracts on Amazon's own DynamoDB Local.

ministack and moto are clones. DynamoDB Local comes from the makers of DynamoDB, so it decides
what conditions, transactions, indexes and errors mean.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import boto3
import pytest
import test_conversations_dynamodb
import test_dynamodb_jobs

from chaos import dynamodb_local
from chaos.isolated_server import NamespaceUnavailable
from holdfast.testing.contracts.conversations.contract import ConversationStoreContract
from holdfast.testing.contracts.conversations.support import OpenStore
from holdfast.testing.contracts.jobs.contract import JobStoreContract
from holdfast.testing.contracts.jobs.support import OpenRepository
from support.aws.lean import make_lean_client

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(
        "HOLDFAST_CHAOS_SECONDS" not in os.environ, reason="minutes, under `make chaos` only"
    ),
    pytest.mark.skipif(
        bool(dynamodb_local.explain_unavailable()), reason=dynamodb_local.explain_unavailable()
    ),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(dynamodb_local.run_server())
        except NamespaceUnavailable as error:
            pytest.skip(str(error))
        make_boto3_client = partial(
            boto3.client,
            "dynamodb",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        yield make_lean_client("dynamodb", server.url, make_boto3_client, access_key="local")


class TestJobsOnDynamoDBLocal(JobStoreContract):
    examples = 3

    @pytest.fixture
    def open_repository(self, client: Any) -> OpenRepository:
        return test_dynamodb_jobs.make_opener(client)


class TestConversationsOnDynamoDBLocal(ConversationStoreContract):
    many = 120

    @pytest.fixture
    def open_store(self, client: Any) -> OpenStore:
        return test_conversations_dynamodb.store_of(client)
