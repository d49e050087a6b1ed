"""Lists for people: each field of a thing is one row of a table, wherever the list is shown.

    fields of a thing ─┬─▶ a table on a terminal, tab-separated lines, a live view   cli.console
                       └─▶ a table on a page of the console     web/templates/parts.html

A cell is a value and not a text, because a page shows a time as one that passes, and a terminal
draws a meter from other characters than a browser does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from holdfast.text import format_duration, format_time

T = TypeVar("T")

Tone = Literal["", "good", "done", "warn", "bad", "dim"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A time: how long ago it was, how long it has lasted, when it comes, or what is left."""

    at: datetime
    style: Literal["ago", "since", "until", "left"] = "ago"

    def format(self, now: datetime) -> str:
        """Return the text for a terminal."""
        if self.style == "until":
            return format_time(self.at, now)
        away = (self.at - now if self.style == "left" else now - self.at).total_seconds()
        text = format_duration(max(0.0, away))
        return f"{text} ago" if self.style == "ago" else text


@dataclass(frozen=True, slots=True)
class Mark:
    """A word that stands out."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Meter:
    """A part of a whole, drawn as a bar. It shrinks by itself if it has a deadline."""

    part: float
    whole: float
    label: str
    tone: Tone = ""
    deadline: datetime | None = None

    @property
    def share(self) -> float:
        """The part as a number from 0 to 1."""
        return min(1.0, max(0.0, self.part / self.whole)) if self.whole > 0 else 0.0


# A text, a number, one of the above, nothing, or several of them one after the other.
Cell = Any


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """A column of a list: its heading, the cell of a thing at a time, and how wide it is."""

    name: str
    read: Callable[[T, datetime], Cell]
    style: Literal["", "id", "num", "wide"] = ""
    min_width: int | None = None  # in a view that cannot scroll
    max_width: int | None = None


def format_cell(cell: Cell, now: datetime) -> str:
    """Return a cell as plain text. Nothing is written as -, and a meter is left out."""
    match cell:
        case None:
            return "-"
        case tuple():
            parts = (format_cell(part, now) for part in cell)
            return " ".join(filter(None, parts)).replace(" ,", ",")
        case Moment():
            return cell.format(now)
        case Mark():
            return cell.text
        case Meter():
            return ""
        case float():
            return f"{cell:,.1f}" if 0 < cell < 10 else f"{cell:,.0f}"
        case int():
            return f"{cell:,}"
    return str(cell)
