"""Fixtures for any project's tests, which pytest finds when Holdfast is installed.

Imports of Holdfast stay inside the fixtures, because every pytest run of the environment
loads this file, also in projects that do not use Holdfast.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.queues.sqlite.memory_queue import MemoryQueueFactory
    from holdfast.testing.clock import ManualClock, SkippingClock
    from holdfast.testing.sqs.service import SimulatedSqs


# The contract suites are ordinary modules, so pytest rewrites their asserts only on request.
pytest.register_assert_rewrite("holdfast.testing.contracts")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that the contract suites use."""
    config.addinivalue_line(
        "markers", "requirement(*ids): what it proves, by the ids of docs/requirements.toml"
    )


@pytest.fixture
def manual_clock() -> "ManualClock":
    """A clock that moves only when the test moves it."""
    from holdfast.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def skipping_clock() -> "SkippingClock":
    """A clock that skips to the time when the next message is due."""
    from holdfast.testing.clock import SkippingClock

    return SkippingClock()


@pytest.fixture
def memory_queue(skipping_clock: "SkippingClock") -> "MemoryQueueFactory":
    """Make empty queues in memory, such as `memory_queue(Charge, max_attempts=2)`.

    Their delays and leases follow `skipping_clock`, so a worker never waits for a retry.
    """
    from holdfast.testing import MemoryQueueFactory

    return MemoryQueueFactory(skipping_clock)


@pytest.fixture
def simulated_sqs(manual_clock: "ManualClock") -> "SimulatedSqs":
    """A simulated SQS without queues, whose time is `manual_clock`. Needs the extra `aws`."""
    from holdfast.testing.sqs.service import SimulatedSqs

    return SimulatedSqs(manual_clock)
