"""Slow tests start first in every process that runs tests."""

from pathlib import Path

import pytest

from support.slow_first import SLOW_FILES, deal

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("workers", [1, 3, 5])
@pytest.mark.parametrize("count", [0, 2, 20, 101])
def test_each_worker_begins_with_its_share_of_slow_items(count: int, workers: int) -> None:
    items = list(range(count))
    dealt = deal(items, workers, lambda item: item % 10 == 0)
    assert sorted(dealt) == items
    slow_counts, pending = [], dealt
    for left in range(workers, 0, -1):  # as pytest-xdist divides them
        share, pending = pending[: len(pending) // left], pending[len(pending) // left :]
        slow = [item for item in share if item % 10 == 0]
        assert share[: len(slow)] == slow
        slow_counts.append(len(slow))
    assert count < workers or max(slow_counts) - min(slow_counts) <= 1


def test_slow_files_exist() -> None:
    assert {path.name for path in TESTS.rglob("test_*.py")} >= SLOW_FILES
