"""The pure parts of the queue contract: backoff, states and message infos."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.lease.backoff import Backoff
from holdfast.queue.info import MessageInfo, MessageState
from holdfast.testing import MemoryQueue


class Lowest(Random):
    def uniform(self, a: float, b: float) -> float:
        return a


class Highest(Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def test_the_delay_doubles_from_one_second_to_five_minutes() -> None:
    delays = [Backoff().delay(attempt, Highest()) for attempt in range(1, 12)]
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_jitter_shortens_a_delay_by_up_to_half() -> None:
    delays = [Backoff().delay(attempt, Lowest()) for attempt in (1, 2, 3, 50)]
    assert delays == [0.5, 1, 2, 150]


def test_jitter_spreads_workers_that_failed_together() -> None:
    delays = {Backoff(first_seconds=100).delay(1, Random(seed)) for seed in range(50)}
    assert len(delays) == 50


def test_a_factor_of_one_is_a_constant_delay() -> None:
    backoff = Backoff(first_seconds=7, factor=1)
    assert [backoff.delay(attempt, Highest()) for attempt in (1, 5, 500)] == [7, 7, 7]


@given(
    attempt=st.integers(1, 10**12),
    first=st.floats(0.001, 1000),
    factor=st.floats(1, 100),
    longest=st.floats(0.001, 1e6),
)
def test_a_delay_is_always_within_its_bounds(
    attempt: int, first: float, factor: float, longest: float
) -> None:
    delay = Backoff(first, factor, longest).delay(attempt, Random())
    assert min(first, longest) / 2 <= delay <= longest


@pytest.mark.parametrize("lease_seconds", [0, -1, -0.5])
def test_lease_seconds_must_be_above_zero(lease_seconds: float) -> None:
    with pytest.raises(ValueError, match="lease_seconds must be above 0"):
        MemoryQueue(lease_seconds=lease_seconds)


@pytest.mark.parametrize("max_attempts", [0, -1])
def test_there_is_at_least_one_attempt(max_attempts: int) -> None:
    with pytest.raises(ValueError, match="max_attempts must be 1 or more"):
        MemoryQueue(max_attempts=max_attempts)


def test_the_repr_of_a_message_info_has_no_body() -> None:
    view = MessageInfo("a", "key", MessageState.PENDING, 0, 0, "here", body={"card": "4111"})
    assert view.body == {"card": "4111"}
    assert "4111" not in repr(view)
