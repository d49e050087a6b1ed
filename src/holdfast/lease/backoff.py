"""The delay before a failed attempt is repeated."""

import re
from dataclasses import dataclass
from random import Random

from holdfast.text import parse_duration

_TEXT = re.compile(
    r"(?P<first>[^,]+)(,\s*x\s*(?P<factor>[0-9]+(\.[0-9]+)?))?(,\s*max(?P<max>[^,]+))?"
)


@dataclass(frozen=True, slots=True)
class Backoff:
    """An exponential delay before attempt n + 1, with a maximum and jitter."""

    first_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 300.0

    @classmethod
    def parse(cls, text: str) -> "Backoff":
        """Return the backoff that a text such as `5s,x2,max 10m` describes.

        The factor and the maximum may be left out. Raises ValueError with the valid forms.
        """
        match = _TEXT.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError("write it as 5s,x2,max 10m, or 5s alone")
        factor = float(match["factor"] or cls().factor)
        if not 1 <= factor <= 100:
            raise ValueError(f"the factor must be from x1 to x100, not x{factor:g}")
        first_seconds = parse_duration(match["first"])
        max_seconds = parse_duration(match["max"]) if match["max"] else cls().max_seconds
        if first_seconds > max_seconds:
            raise ValueError(
                f"the first delay, {first_seconds:g} s, is above the maximum, "
                f"{max_seconds:g} s; write both, as in 15m,max 1h"
            )
        return cls(first_seconds, factor, max_seconds)

    def delay(self, attempt: int, random: Random) -> float:
        """Return the seconds to wait after `attempt`: 50 to 100 % of the exponential delay."""
        ceiling = min(
            self.max_seconds, self.first_seconds * self.factor ** min(attempt - 1, 63)
        )
        return ceiling * random.uniform(0.5, 1.0)
