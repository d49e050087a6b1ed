"""Run the store contracts on Amazon's own DynamoDB Local.

ministack and moto are clones. DynamoDB Local comes from the makers of DynamoDB, so it decides
what conditions, transactions, indexes and errors mean.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import test_conversations_dynamodb
import test_dynamodb_jobs

from contracts.conversations.contract import ConversationStoreContract
from contracts.conversations.support import OpenStore
from contracts.jobs.contract import JobStoreContract
from contracts.jobs.support import OpenRepository
from emulators import dynamodb_local
from support.aws.client_kinds import KINDS, make_server_client

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        bool(dynamodb_local.explain_unavailable()), reason=dynamodb_local.explain_unavailable()
    ),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with dynamodb_local.run_server() as server:
        yield server.url


@pytest.fixture(scope="module", params=KINDS)
def client(request: pytest.FixtureRequest, url: str) -> Any:
    return make_server_client(request.param, "dynamodb", url)


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
