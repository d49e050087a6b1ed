"""A DynamoDB of moto with empty conversation tables, for the tests in this folder."""

from collections.abc import Iterator
from typing import Any

import pytest
from conversation_rows import TABLES

from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.dynamodb.tables import define_tables
from holdfast.testing import ManualClock
from support.dynamodb.service import clear_tables, start_service


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with start_service(define_tables(TABLES)) as client:
        yield client


@pytest.fixture
def client(moto: Any) -> Any:
    return clear_tables(moto)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def store(client: Any, clock: ManualClock) -> DynamoDBConversations:
    return DynamoDBConversations(client=client, clock=clock)
