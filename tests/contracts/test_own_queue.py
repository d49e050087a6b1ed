"""The example of a queue of one's own keeps the contract, with public names alone."""

from typing import Any

import pytest
from examples.own_queue import ListQueue, Task, Tasks

from holdfast import QueueManager
from holdfast.testing import ManualClock
from holdfast.testing.contracts import QueueContract
from holdfast.testing.contracts.queue.support import AnyQueue, Inject, MakeQueue


class TestListQueue(QueueContract):
    lacks = QueueManager.capabilities - ListQueue.capabilities

    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        return opener(clock)

    @pytest.fixture
    def make_other_queue(self, clock: ManualClock) -> MakeQueue:
        return opener(clock)

    @pytest.fixture
    def inject(self) -> Inject:
        def add(queue: AnyQueue, body: bytes) -> None:
            queue._tasks.append(Task("?", body, 0.0))

        return add


def opener(clock: ManualClock) -> MakeQueue:
    tasks = Tasks()

    def open_queue(model: Any = None, dedupe: bool = False, **settings: Any) -> AnyQueue:
        from holdfast import AnyMessage

        return ListQueue(tasks, model or AnyMessage, **{"clock": clock} | settings)

    return open_queue
