"""The number of modules that one message visits, see tools/message_path.py."""

import pytest
from tools import message_path


@pytest.mark.parametrize("queue", ["files", "SQS"])
@pytest.mark.parametrize(("way", "most"), [("poll and ack", 8), ("worker", 14)])
def test_one_message_visits_few_modules(queue: str, way: str, most: int) -> None:
    modules, _ = message_path.measure(queue, way)
    assert len(modules) <= most, modules
