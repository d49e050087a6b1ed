"""Fixtures of the tests of SQSQueue: a simulated SQS, which `clock` moves."""

import pytest

from holdfast.testing import ManualClock, SimulatedSqs


@pytest.fixture
def sqs(clock: ManualClock) -> SimulatedSqs:
    return SimulatedSqs(clock)
