"""The number of modules that one message visits, see tools/message_path.py."""

import pytest
from tools import message_path

# The modules and switches of each queue, at most.
LIMITS = {
    "poll and ack": {"files": (8, 21), "SQLite": (6, 15), "SQS": (9, 30)},
    "worker": dict.fromkeys(("files", "SQLite", "SQS"), (3, 2)),
    "no backlog": {"files": (12, 35), "SQLite": (10, 22), "SQS": (14, 40)},
}


@pytest.mark.parametrize("queue", ["files", "SQLite", "SQS"])
@pytest.mark.parametrize("way", LIMITS)
def test_one_message_visits_few_modules(queue: str, way: str) -> None:
    path = message_path.measure(queue, way)
    most, most_switches = LIMITS[way][queue]
    assert len(message_path.list_modules(path)) <= most, path
    assert message_path.count_switches(path) <= most_switches, path
