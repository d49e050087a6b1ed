"""When to try again, and when to stop. Values in, values out."""

import random
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from holdfast.adapters.export.errors import TaskError

_FIRST_WAIT_SECONDS = 0.5
_ENOUGH = 1 << 20  # bytes that make an attempt worth while


class RetryCounter:
    """How often one task failed so far.

    A file is not given up while it grows: an attempt that got further than all before it,
    by a mebibyte, pays for itself. A server that starts over each time gets nowhere.
    """

    def __init__(
        self,
        attempts: int,
        longest_wait_seconds: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._attempts = attempts
        self._longest = longest_wait_seconds
        self._chance = chance
        self._failures = 0
        self._furthest = 0
        self._begun_afresh: set[str] = set()

    def wait_after(self, trouble: TaskError, size: int) -> float:
        """Seconds until the next attempt. Raises `trouble` when there is to be none."""
        if not trouble.again:
            raise trouble
        if trouble.afresh:
            self._once(trouble)
        if size >= self._furthest + _ENOUGH:
            self._failures = 0
        self._furthest = max(self._furthest, size)
        self._failures += 1
        if self._failures >= self._attempts:
            raise trouble
        return self._wait(trouble.after_seconds)

    def _once(self, trouble: TaskError) -> None:
        # The whole file came and is wrong. One clean download tells a bad resume from a
        # wrong file; a second would only cost as much again.
        if trouble.code in self._begun_afresh:
            raise trouble
        self._begun_afresh.add(trouble.code)

    def _wait(self, asked_seconds: float) -> float:
        doubled = _FIRST_WAIT_SECONDS * 2.0 ** min(self._failures - 1, 20)
        wait = doubled * (0.5 + self._chance() / 2)
        return min(max(wait, asked_seconds), self._longest)


def retry_after(text: str | None, now: float) -> float:
    """Seconds, of a Retry-After field: a number or a date. Nonsense asks for nothing."""
    if not text:
        return 0.0
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return 0.0
