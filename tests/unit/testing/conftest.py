"""Fixtures of the tests of the SQS simulator."""

import pytest

from holdfast.testing import SimulatedSqs
from support.sqs.calls import Client, create_queue


@pytest.fixture
def client(simulated_sqs: SimulatedSqs) -> Client:
    return simulated_sqs.client()


@pytest.fixture
def url(client: Client) -> str:
    return create_queue(client)
