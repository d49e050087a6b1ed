"""The example of a queue of one's own keeps the contract, with public names alone."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from examples.own_queue import ListQueue, Task, Tasks

from holdfast import AnyMessage, QueueManager
from holdfast.testing import ManualClock
from holdfast.testing.contracts import QueueContract
from holdfast.testing.contracts.queue.support import LEASE, AnyQueue, Inject, MakeQueue


class TestListQueue(QueueContract):
    lacks = QueueManager.capabilities - ListQueue.capabilities

    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        return opener(clock)

    @pytest.fixture
    def make_other_queue(self, clock: ManualClock) -> MakeQueue:
        return opener(clock)

    @pytest.fixture
    def contents(self) -> Callable[[AnyQueue], object]:
        return lambda queue: queue.stats()

    @pytest.fixture
    def inject(self) -> Inject:
        def add(queue: AnyQueue, body: bytes) -> None:
            queue._tasks.append(Task(read_id(body), body, 0.0))

        return add


def read_id(body: bytes) -> str:
    """Return the id in a body that may be anything."""
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
        if isinstance(value, dict) and isinstance(value.get("id"), str):
            return value["id"]
    return "unknown"


def opener(clock: ManualClock) -> MakeQueue:
    tasks = Tasks(clock)

    def open_queue(model: Any = AnyMessage, dedupe: bool = False, **settings: Any) -> AnyQueue:
        return ListQueue(tasks, model, **{"clock": clock, "lease_seconds": LEASE} | settings)

    return open_queue
