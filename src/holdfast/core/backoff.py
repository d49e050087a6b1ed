"""How long to wait before the next attempt."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before attempt n + 1: exponential, capped, with full-range jitter."""

    first_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 300.0

    def delay(self, attempt: int, random: Random) -> float:
        ceiling = min(
            self.max_seconds, self.first_seconds * self.factor ** min(attempt - 1, 63)
        )
        return ceiling * random.uniform(0.5, 1.0)
