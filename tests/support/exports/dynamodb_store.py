"""A job store on DynamoDB whose tables are empty, with its clock."""

from dataclasses import dataclass
from typing import Any

from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.testing import ManualClock


@dataclass
class Store:
    """The tables behind a client, and one store over them."""

    client: Any
    clock: ManualClock

    def __post_init__(self) -> None:
        self.jobs = self.open(self.client)

    def open(self, client: Any, **options: Any) -> DynamoDBJobs:
        """Open another store over these tables, with a client that may fail."""
        return DynamoDBJobs(client=client, clock=self.clock, **options)
