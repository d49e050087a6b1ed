"""Parse and format durations, sizes and times, for all commands."""

import re

import typer

from holdfast import text as texts
from holdfast.text import format_age as format_age
from holdfast.text import format_bytes as format_bytes
from holdfast.text import format_duration as format_duration
from holdfast.text import format_time as format_time


def parse_duration(text: str | float) -> float:
    """Return the seconds in a duration. Raises typer.BadParameter with the valid forms."""
    try:
        return texts.parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


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
