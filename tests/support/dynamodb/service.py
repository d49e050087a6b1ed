"""moto's DynamoDB in this process, with tables."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import boto3
from moto import mock_aws
from moto.dynamodb.models import dynamodb_backends

from holdfast.exports.dynamodb.tables import JobTables, define_tables


@contextmanager
def start_service(
    definitions: Iterable[Mapping[str, Any]] | None = None,
) -> Iterator[Any]:
    """Run moto in this process with these tables, or with those of jobs."""
    with mock_aws():
        client = boto3.client(
            "dynamodb",
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        for definition in define_tables(JobTables()) if definitions is None else definitions:
            client.create_table(**definition)
        yield client


def clear_tables(client: Any) -> Any:
    """Delete all rows of the service and return it.

    Creating the tables again would cost many calls, and moto is slow.
    """
    [regions] = dynamodb_backends.values()
    for table in regions[client.meta.region_name].tables.values():
        table.items.clear()
    return client
