"""A DynamoDB of moto with empty conversation tables, for the tests in this folder."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.adapters.aws.dynamodb.chat import DynamoDBConversations
from holdfast.testing import ManualClock
from support.dynamodb.conversations import clear_tables, start_chat_service


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with start_chat_service() as client:
        yield client


@pytest.fixture
def client(moto: Any) -> Any:
    return clear_tables(moto)


@pytest.fixture
def store(client: Any, clock: ManualClock) -> DynamoDBConversations:
    return DynamoDBConversations(client=client, clock=clock)
