"""DynamoDBJobs keeps the promises of a job store, on two independent servers.

All promises are tested on ministack, over HTTP with the lean client, under `make nightly` with
both. There each call is one step, so that many threads can conflict. Those of the outcome are
also tested on moto, in this process with boto3, like tests/integration/exports/dynamodb. A
fault of one server or client should not be a fault of the other. moto is not thread-safe, and
slow with many rows.
"""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from contracts.jobs.contract import JobStoreContract
from contracts.jobs.counting import SealPromises
from contracts.jobs.outcomes import CallbackPromises, OutcomePromises
from contracts.jobs.support import OpenRepository
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.dynamodb.tables import JobTables, define_tables
from holdfast.testing import ManualClock
from support.aws.client_kinds import LEAN_BY_DAY, make_server_client
from support.dynamodb.service import start_service

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

_numbers = count()


def make_opener(client: Any) -> OpenRepository:
    """Create tables for one test and return a function that opens a store on them."""
    number = next(_numbers)
    tables = JobTables(f"Jobs{number}", f"Tasks{number}")
    for definition in define_tables(tables):
        client.create_table(**definition)

    def open_store(clock: ManualClock, keep_seconds: float | None = None) -> DynamoDBJobs:
        return DynamoDBJobs(
            jobs_table=tables.jobs,
            tasks_table=tables.tasks,
            client=client,
            clock=clock,
            keep_seconds=keep_seconds,
        )

    return open_store


@pytest.fixture(scope="module", params=LEAN_BY_DAY)
def http_client(request: pytest.FixtureRequest, ministack: "Ministack") -> Any:
    return make_server_client(request.param, "dynamodb", ministack.url)


class TestDynamoDBJobs(JobStoreContract):
    """(JB-44)."""

    examples = 1  # of thirty calls, with twenty reads after each

    @pytest.fixture
    def open_repository(self, http_client: Any) -> OpenRepository:
        return make_opener(http_client)


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with start_service() as client:
        yield client


class TestDynamoDBJobsOnMoto(SealPromises, OutcomePromises, CallbackPromises):
    @pytest.fixture
    def open_repository(self, moto: Any) -> OpenRepository:
        return make_opener(moto)
