"""SQLiteQueue follows the queue contract."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.queue.message import AnyMessage
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.contract import QueueContract
from holdfast.testing.contracts.queue.support import LEASE, AnyQueue, Inject, MakeQueue


class TestSQLiteQueue(QueueContract):
    @pytest.fixture
    def make_queue(self, tmp_path: Path, clock: ManualClock) -> MakeQueue:
        return _opener(tmp_path, "default", clock)

    @pytest.fixture
    def make_other_queue(self, tmp_path: Path, clock: ManualClock) -> MakeQueue:
        return _opener(tmp_path, "other", clock)

    @pytest.fixture
    def inject(self, make_queue: MakeQueue) -> Inject:
        return lambda _, body: _overwrite_a_push(make_queue(), body)


def _opener(folder: Path, name: str, clock: ManualClock) -> MakeQueue:
    def open_one(**settings: Any) -> AnyQueue:
        defaults = {
            "lease_seconds": LEASE,
            "clock": clock,
            "machine_clock": clock,
            "queue": name,
        }
        return SQLiteQueue(folder / "work.db", **defaults | settings)

    return open_one


def _overwrite_a_push(queue: Any, body: bytes) -> None:
    """Give a push the bytes, and the id in them, as a newer program would have written it."""
    queue.push(AnyMessage(id="injected"))
    statement = (
        "UPDATE messages SET body = CAST(? AS TEXT), id = ? WHERE id = 'injected' AND state = 0"
    )
    with queue._database.begin_write() as connection:
        assert connection.execute(statement, (body, _find_id(body))).rowcount == 1


def _find_id(body: bytes) -> str:
    try:
        found = json.loads(body)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "unknown"
    return found if isinstance(found, str) and found else "unknown"
