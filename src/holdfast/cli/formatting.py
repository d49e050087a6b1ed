"""Parse and format durations, sizes and times, for all commands."""

import re
from datetime import datetime

import typer

from holdfast.core import durations


def parse_duration(text: str | float) -> float:
    """Return the seconds in a duration. Raises typer.BadParameter with the valid forms."""
    try:
        return durations.parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


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


# -- sizes

_MAX_BYTES = 1 << 63
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Return the bytes in a size. Raises typer.BadParameter with the valid forms."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        step = 1024 if match[3] else 1000
        value = float(match[1]) * step ** " kmgt".index(match[2].lower() or " ")
    if value < 1:
        raise typer.BadParameter(f"{text!r} is not a size; write 500MB, 2GiB or plain bytes")
    if value > _MAX_BYTES:
        raise typer.BadParameter(f"{text!r} is more than 8388608TiB, the maximum of a file")
    return int(value)


_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_bytes(count: float) -> str:
    """Return a readable size, such as 1.2 MB."""
    for unit in _BYTE_UNITS:
        if count < 999.5 or unit == _BYTE_UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError
