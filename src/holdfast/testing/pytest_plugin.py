"""Fixtures for anybody's tests, found by pytest once Holdfast is installed.

Imports of our own stay inside the fixtures: this file is loaded into every pytest run of
the environment, also those that have nothing to do with Holdfast.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.core.queue.message import AnyMessage
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.memory_queue import MemoryQueue
    from holdfast.testing.sqs.service import SimulatedSqs


# The contract suites are ordinary modules, so pytest must be told to explain their asserts.
pytest.register_assert_rewrite("holdfast.testing.contracts")


@pytest.fixture
def manual_clock() -> "ManualClock":
    """Time that moves only when the test says so."""
    from holdfast.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def memory_queue(manual_clock: "ManualClock") -> "MemoryQueue[AnyMessage]":
    """An empty queue in memory whose leases and delays follow `manual_clock`."""
    from holdfast.testing.memory_queue import MemoryQueue

    return MemoryQueue(clock=manual_clock)


@pytest.fixture
def simulated_sqs(manual_clock: "ManualClock") -> "SimulatedSqs":
    """An SQS without queues whose time is `manual_clock`. Needs `holdfast[aws]`."""
    from holdfast.testing.sqs.service import SimulatedSqs

    return SimulatedSqs(manual_clock)
