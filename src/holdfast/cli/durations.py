"""Parse durations such as 30s, 5m, 2h, 7d, 1h30m or plain seconds, and format them."""

import re

import typer

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# Longer than any useful duration, and far below where a time no longer fits in a file name.
MAX_SECONDS = 3650 * 86_400.0


def parse_duration(text: str | float) -> float:
    """Return the seconds in a duration. Raises typer.BadParameter with the valid forms."""
    if isinstance(text, float):  # typer passes defaults through the parser too
        return text
    normalized = text.strip().lower().replace(" ", "")
    if _PLAIN.fullmatch(normalized):
        value = float(normalized)
    elif re.fullmatch(f"(?:{_PART.pattern})+", normalized):
        value = sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(normalized))
    else:
        raise typer.BadParameter(
            f"{text!r} is not a duration; write 30s, 5m, 2h, 7d, 1h30m or plain seconds"
        )
    if value > MAX_SECONDS:
        raise typer.BadParameter(f"{text!r} is longer than ten years")
    return value


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
