"""A DynamoDB of moto with empty job tables, for the tests in this folder."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.testing import ManualClock
from support.dynamodb.service import clear_tables, start_service
from support.exports.dynamodb_store import Store


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with start_service() as client:
        yield client


@pytest.fixture
def store(moto: Any) -> Store:
    return Store(clear_tables(moto), ManualClock(auto_advance=True))
