"""Texts for people that several layers write, and durations that people write."""

import re
from datetime import datetime


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun, such as "1 message" or "2,000 messages"."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def strip_control_characters(text: str) -> str:
    """Return the text with every unprintable character escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )


_LARGE = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def format_duration(seconds: float) -> str:
    """Return a readable duration with two units at most."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    size, unit, below, small = next(row for row in _LARGE if seconds >= row[0])
    count, rest = int(seconds // size), int(seconds % size // below)
    return f"{count} {unit} {rest} {small}" if rest else f"{count} {unit}"


def format_age(at: float, now: float) -> str:
    """Return the time since a moment."""
    return format_duration(max(0.0, now - at))


def format_time(moment: datetime, now: datetime) -> str:
    """Return a time of day, and how far away it is."""
    away = (moment - now).total_seconds()
    clock = f"{moment:%H:%M:%S}" if abs(away) < 43_200 else f"{moment:%Y-%m-%d %H:%M}"
    distance = f"in {format_duration(away)}" if away > 0 else f"{format_duration(-away)} ago"
    return f"{clock} UTC ({distance})"


_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_bytes(count: float) -> str:
    """Return a readable size, such as 1.2 MB."""
    for unit in _BYTE_UNITS:
        if count < 999.5 or unit == _BYTE_UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError


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
