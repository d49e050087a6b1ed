"""The number of modules that one message visits, see tools/message_path.py."""

import pytest
from tools import message_path


@pytest.mark.parametrize("queue", ["files", "SQLite", "SQS"])
@pytest.mark.parametrize(
    ("way", "most", "most_switches"),
    [("poll and ack", 9, 30), ("worker", 6, 8), ("no backlog", 17, 62)],
)
def test_one_message_visits_few_modules(
    queue: str, way: str, most: int, most_switches: int
) -> None:
    path = message_path.measure(queue, way)
    assert len(message_path.list_modules(path)) <= most, path
    assert message_path.count_switches(path) <= most_switches, path
