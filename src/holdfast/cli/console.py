"""Where output goes: what was asked for to stdout, everything else to stderr.

Text that came out of a queue or from the command line is never trusted: a reason, an id or
the name of a file may hold terminal escapes or rich markup. Every line is cleaned here, at the
way out, and printed as plain text.
"""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def info(text: str) -> None:
    """A line for the person at the keyboard.

    To whatever stderr is at the moment: while a live line is drawn, rich stands in for it
    and puts what is written above the line.
    """
    if sys.stderr is not None:  # closed from the start, as by 2>&-
        sys.stderr.write(f"{_clean_lines(text)}\n")
        sys.stderr.flush()


def print_result(text: str) -> None:
    """A line of what was asked for."""
    typer.echo(_clean_lines(text))


def print_json(value: Any) -> None:
    """For scripts: ASCII, so no terminal and no locale can spoil it."""
    typer.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def strip_control_characters(text: str) -> str:
    """The text with everything unprintable made visible."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )


def _clean_lines(text: str) -> str:
    return "\n".join(map(strip_control_characters, text.split("\n")))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns on a terminal; tab-separated lines for everything else."""
    tidy = [[strip_control_characters(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [list(headings), *tidy]:
            typer.echo("\t".join(row))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for row in tidy:
        table.add_row(*(Text(cell) for cell in row))
    terminal().print(table)


def terminal(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def is_terminal() -> bool:
    """Is somebody watching? Progress and live views go to stderr, and only then."""
    return sys.stderr is not None and sys.stderr.isatty()
