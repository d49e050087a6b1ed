"""The delay before a failed attempt is repeated."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """An exponential delay before attempt n + 1, with a maximum and jitter."""

    first_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 300.0

    def delay(self, attempt: int, random: Random) -> float:
        """Return the seconds to wait after `attempt`: 50 to 100 % of the exponential delay."""
        ceiling = min(
            self.max_seconds, self.first_seconds * self.factor ** min(attempt - 1, 63)
        )
        return ceiling * random.uniform(0.5, 1.0)
