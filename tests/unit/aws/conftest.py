"""Fixtures of the tests of SQSHeartbeat."""

from collections.abc import Iterator

import pytest

from support.sqs.heartbeats import Ground


@pytest.fixture
def ground() -> Iterator[Ground]:
    """Return heartbeats on one manual clock and one client, which are stopped at the end."""
    ground = Ground()
    yield ground
    ground.close()
