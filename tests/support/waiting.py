"""Wait in real time for what another thread does."""

import time
from collections.abc import Callable

TEST_TIMEOUT_SECONDS = 20.0  # real seconds until a hung test fails


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true; fail if that takes too long."""
    give_up_at = time.monotonic() + TEST_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "the condition did not become true"
        time.sleep(0.0005)
