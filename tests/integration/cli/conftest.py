"""What tests of the command line share."""

import pytest


@pytest.fixture(params=["enrich", "sqlite:work.db/enrich"])
def name(request: pytest.FixtureRequest) -> str:
    """The queue, on files and in SQLite."""
    queue: str = request.param
    return queue
