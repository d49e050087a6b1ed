"""The pace of a worker: how much work its slots finish within a second, by recent handlers."""

_START_SECONDS = 1.0  # until handlers have shown that they are faster
_WEIGHT = 0.2  # of the newest handler: one of five seconds ends the prefetch at once
_MIN_SECONDS = 1e-6


class Pace:
    """The average seconds of recent handlers. Slots share it without a lock.

    Two slots that note their seconds at the same moment may lose one of them, which does no
    harm to an average.
    """

    def __init__(self) -> None:
        self.seconds = _START_SECONDS

    def note(self, seconds: float) -> None:
        """Add the seconds of a handler that ended."""
        self.seconds += _WEIGHT * (seconds - self.seconds)

    def count_ahead(self, seconds: float, slots: int) -> int:
        """Return how many more messages that many busy slots also finish within `seconds`."""
        return int(slots * max(0.0, seconds / max(self.seconds, _MIN_SECONDS) - 1))
