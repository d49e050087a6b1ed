"""Wait in real time for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_TIMEOUT_SECONDS = 60.0  # until a hung test fails, also on a busy machine
MAX_PAUSE_SECONDS = 0.05

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = WAIT_TIMEOUT_SECONDS) -> T:
    """Wait until the condition is true, and return its value; fail if that takes too long."""
    give_up_at = time.monotonic() + seconds
    pause_seconds = 0.0005
    while not (value := condition()):
        assert time.monotonic() < give_up_at, "the condition did not become true"
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, MAX_PAUSE_SECONDS)
    return value
