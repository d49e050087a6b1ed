"""The pure parts of the queue contract: backoff, states and message infos."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.lease.backoff import Backoff


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
