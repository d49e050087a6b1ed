"""A DynamoDB of moto with empty job tables, for the tests in this folder."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.testing import ManualClock
from support.dynamodb.service import clear_tables, start_service


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with start_service() as client:
        yield client


@pytest.fixture
def client(moto: Any) -> Any:
    return clear_tables(moto)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def jobs(client: Any, clock: ManualClock) -> DynamoDBJobs:
    return DynamoDBJobs(client=client, clock=clock)
