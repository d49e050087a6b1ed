"""Fixtures of the tests of SQSQueue: a simulated SQS, and a clock that moves it."""

import pytest

from holdfast.testing import ManualClock, SimulatedSqs


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sqs(clock: ManualClock) -> SimulatedSqs:
    return SimulatedSqs(clock)
