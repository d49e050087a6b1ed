"""Durations as text: 30s, 5m, 1h30m, or plain seconds."""

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# Longer than any useful duration, and far below where a time no longer fits in a file name.
MAX_SECONDS = 3650 * 86_400.0


def parse_duration(duration: str | float) -> float:
    """Return the seconds in a duration: a text such as 1h30m, or seconds as they are.

    Raises ValueError with the valid forms.
    """
    if not isinstance(duration, str):
        return duration
    normalized = duration.strip().lower().replace(" ", "")
    if _PLAIN.fullmatch(normalized):
        value = float(normalized)
    elif re.fullmatch(f"(?:{_PART.pattern})+", normalized):
        value = sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(normalized))
    else:
        raise ValueError(
            f"{duration!r} is not a duration; write 30s, 5m, 2h, 7d, 1h30m or plain seconds"
        )
    if value > MAX_SECONDS:
        raise ValueError(f"{duration!r} is longer than ten years")
    return value
