"""The conversation contract for DynamoDBConversations.

On ministack, over HTTP with the lean client, nightly with both. There each call is one step, so
that crowds can meet. The tests of its own are on moto with boto3. A fault of one server should
not be a fault of the other.
"""

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from contracts.conversations.contract import ConversationStoreContract
from contracts.conversations.support import OpenStore
from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.dynamodb.tables import define_tables, tables_from_prefix
from holdfast.testing import ManualClock
from support.aws.client_kinds import LEAN_BY_DAY, make_server_client

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

_numbers = count()


def store_of(client: Any) -> OpenStore:
    """Return tables for one test only."""
    prefix = f"t{next(_numbers)}-"
    for definition in define_tables(tables_from_prefix(prefix)):
        client.create_table(**definition)

    def open_one(clock: ManualClock) -> DynamoDBConversations:
        return DynamoDBConversations(prefix, client=client, clock=clock)

    return open_one


@pytest.fixture(scope="module", params=LEAN_BY_DAY)
def over_http(request: pytest.FixtureRequest, ministack: "Ministack") -> Any:
    return make_server_client(request.param, "dynamodb", ministack.url)


class TestDynamoDBConversations(ConversationStoreContract):
    examples = 3  # twenty-five on DynamoDB Local, under `make nightly`
    steps = 20  # each makes eight calls over HTTP
    many = 120

    @pytest.fixture
    def open_store(self, over_http: Any) -> OpenStore:
        return store_of(over_http)
