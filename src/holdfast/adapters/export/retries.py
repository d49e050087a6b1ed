"""Retries of a download: how long to wait, and when to give up."""

import random
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from holdfast.adapters.export.errors import TaskError

_FIRST_WAIT_SECONDS = 0.5
_MIN_PROGRESS_BYTES = 1 << 20  # an attempt that gained this much is not a failure


class RetryCounter:
    """The failed attempts of one task.

    A file is not given up while it grows. An attempt that got a mebibyte further than all
    attempts before it resets the count. A server that starts over each time does not.
    """

    def __init__(
        self,
        attempts: int,
        max_wait_seconds: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._attempts = attempts
        self._max_wait_seconds = max_wait_seconds
        self._chance = chance
        self._failures = 0
        self._max_size = 0
        self._restarted_codes: set[str] = set()

    def record_failure(self, error: TaskError, size: int) -> float:
        """Count a failed attempt and return the seconds until the next one.

        Raises `error` if there is no next attempt.
        """
        if not error.retryable:
            raise error
        if error.start_over:
            self._allow_one_restart(error)
        if size >= self._max_size + _MIN_PROGRESS_BYTES:
            self._failures = 0
        self._max_size = max(self._max_size, size)
        self._failures += 1
        if self._failures >= self._attempts:
            raise error
        return self._compute_wait(error.after_seconds)

    def _allow_one_restart(self, error: TaskError) -> None:
        # The complete file was received and is wrong. One download from zero distinguishes
        # a bad resume from a wrong file. A second one would only cost as much again.
        if error.code in self._restarted_codes:
            raise error
        self._restarted_codes.add(error.code)

    def _compute_wait(self, requested_seconds: float) -> float:
        doubled = _FIRST_WAIT_SECONDS * 2.0 ** min(self._failures - 1, 20)
        wait = doubled * (0.5 + self._chance() / 2)
        return min(max(wait, requested_seconds), self._max_wait_seconds)


def parse_retry_after(text: str | None, now: float) -> float:
    """Return the seconds of a Retry-After field, which is a number or a date.

    Returns 0 if there is no such field or its value has another form.
    """
    if not text:
        return 0.0
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return 0.0
