"""Write results to stdout and everything else to stderr, and end with a documented exit code.

Text from a queue or from the command line is not trusted, because a reason, an id or a file
name may hold terminal escapes or rich markup. Every line is cleaned here, just before it is
printed as plain text.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from holdfast.errors import (
    ConfigError,
    HandlerNotFound,
    HoldfastError,
    InvalidInput,
    InvalidName,
    MalformedMessage,
    MessageTooLarge,
    QueueUnavailable,
    StoreUnavailable,
    Unsupported,
)
from holdfast.lease.clock import utc_now
from holdfast.listing import Field, Meter, format_cell
from holdfast.text import strip_control_characters as strip_control_characters

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")

_MIN_CELL_WIDTH = 8
_BAR_WIDTH = 16
_STYLES = {"": "", "good": "green", "warn": "yellow", "bad": "red"}


def info(text: str) -> None:
    """Write a line to stderr.

    It uses the current sys.stderr, because while a live line is drawn rich replaces it and
    writes above the line.
    """
    if sys.stderr is not None:  # 2>&- closes it from the start
        lines = map(strip_control_characters, text.split("\n"))
        sys.stderr.write("\n".join([*lines, ""]))
        sys.stderr.flush()


def print_result(*lines: str) -> None:
    """Write lines of the result to stdout. A newline within one is escaped."""
    for line in lines:
        typer.echo(strip_control_characters(line))


def print_facts(facts: Iterable[tuple[str, str]], width: int = 14) -> None:
    """Write a line for each heading and its text."""
    print_result(*(f"{heading:<{width}} {text}" for heading, text in facts))


def confirm(question: str) -> None:
    """Ask before something is dropped, or many things are changed.

    Raises UsageError without a terminal to ask on.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            "this cannot be undone, and there is no terminal to confirm it; add --yes"
        )
    if not typer.confirm(question, err=True):
        info("nothing was changed")
        raise typer.Exit(ExitCode.FAILED)


def print_json(value: Any) -> None:
    """Write JSON to stdout. It is ASCII, so that no terminal or locale can change it.

    A dataclass is written as an object, a time in its ISO form, and a member of an Enum as
    its value.
    """
    indent = 2 if sys.stdout.isatty() else None
    typer.echo(json.dumps(value, indent=indent, default=_to_json))


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return asdict(value)  # type: ignore[arg-type]  # an instance, not a class
    return value.isoformat() if isinstance(value, datetime) else value.value


def print_either(as_json: bool, value: Any, *lines: str) -> None:
    """Write the value as JSON, or else the lines that say the same."""
    print_json(value) if as_json else print_result(*lines)


def print_list(
    as_json: bool, items: Sequence[T], to_json: Callable[[T], Any], fields: Sequence[Field[T]]
) -> None:
    """Write the items as JSON, or else as a table with a cell for each field."""
    if as_json:
        print_json([to_json(item) for item in items])
        return
    now = utc_now()
    rows = [[format_cell(field.read(item, now), now) for field in fields] for item in items]
    print_table([field.name for field in fields], rows)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table: columns on a terminal, tab-separated lines elsewhere."""
    cleaned = [[strip_control_characters(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [list(headings), *cleaned]:
            typer.echo("\t".join(row))
        return
    from rich.cells import cell_len
    from rich.text import Text

    table = make_table()
    for number, heading in enumerate(headings):
        # The first column holds ids, which are copied into other commands. They stay on one
        # line, and all other text is folded, so nothing is cut.
        table.add_column(heading, no_wrap=number == 0, overflow="fold")
    for row in cleaned:
        table.add_row(*(Text(cell) for cell in row))
    console = make_console()
    longest = max((cell_len(row[0]) for row in cleaned), default=0)
    # If the ids leave no room for the rest, the terminal folds the lines.
    console.width = max(console.width, longest + _MIN_CELL_WIDTH * len(headings))
    console.print(table)


def draw_table(items: Iterable[T], fields: Sequence[Field[T]], now: datetime) -> "Table":
    """Return a table for a live view, which cuts what does not fit, with drawn meters."""
    from rich.text import Text

    table = make_table()
    for field in fields:
        table.add_column(
            field.name,
            no_wrap=True,
            overflow="ellipsis",
            min_width=field.min_width,
            max_width=field.max_width,
        )
    for item in items:
        cells = [field.read(item, now) for field in fields]
        texts = [Text(strip_control_characters(format_cell(cell, now))) for cell in cells]
        for cell, text in zip(cells, texts, strict=True):
            for part in cell if isinstance(cell, tuple) else ():
                if isinstance(part, Meter) and part.deadline is not None:
                    text.append(f" {_draw_bar(part.share)}", _STYLES[part.tone])
        table.add_row(*texts)
    return table


def _draw_bar(share: float) -> str:
    cells = round(_BAR_WIDTH * share)
    return "━" * cells + "╌" * (_BAR_WIDTH - cells)


def make_table() -> "Table":
    """Return a rich table in the style of all lists."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)


def make_console(*, stderr: bool = False) -> "Console":
    """Return a rich console for stdout or stderr."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def is_terminal() -> bool:
    """Return whether stderr is a terminal. Only then are progress and live views shown."""
    return sys.stderr is not None and sys.stderr.isatty()


# -- errors

DEBUG_VARIABLE = "HOLDFAST_DEBUG"


class ExitCode(IntEnum):
    """The exit codes, documented in docs/reference/cli.md. Scripts rely on them."""

    OK = 0
    FAILED = 1  # not found, a check failed, or the demo's totals do not match
    USAGE = 2  # wrong option, name, setting, handler or kind of queue
    UNAVAILABLE = 3  # the queue cannot be reached, read or written
    REFUSED = 4  # the input is not a message: not JSON, not UTF-8, too large
    BUG = 70
    INTERRUPTED = 130


class InputRefused(HoldfastError):
    """Some input is not a message. The text says where, and what was pushed before it."""


class NotFound(HoldfastError):
    """The thing a command was asked for does not exist."""


class UsageError(HoldfastError):
    """A command cannot be run as it was written."""


_CODES: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
    ((QueueUnavailable, StoreUnavailable), ExitCode.UNAVAILABLE),
    ((UsageError, ConfigError, Unsupported, InvalidName, HandlerNotFound), ExitCode.USAGE),
    ((InputRefused, InvalidInput, MalformedMessage, MessageTooLarge), ExitCode.REFUSED),
    ((HoldfastError,), ExitCode.FAILED),
    ((OSError,), ExitCode.UNAVAILABLE),
)


def exit_code_from_error(error: BaseException) -> ExitCode:
    """Return the exit code of an error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.BUG)


def format_error(error: BaseException) -> str:
    """Return one line that says what failed and what to do."""
    if isinstance(error, HoldfastError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error} (try `holdfast doctor QUEUE`)"
    # The text of a foreign error may quote what it could not read, such as a message's body.
    return (
        f"this is a bug in Holdfast: {type(error).__name__}{_format_place(error)} "
        f"(run it with {DEBUG_VARIABLE}=1 for the text and the traceback, and please report it)"
    )


def _format_place(error: BaseException) -> str:
    """Return the file and line where the error was raised, if known."""
    from traceback import extract_tb

    frames = extract_tb(error.__traceback__)[-1:]
    return "".join(
        f" in {os.path.basename(each.filename)}, line {each.lineno}" for each in frames
    )


@contextmanager
def silence_log() -> Iterator[None]:
    """Keep log lines off stderr if no logging is set up.

    A store logs a failed query and also raises it, and the command shows the raised error.
    """
    import logging

    log, handler = logging.getLogger("holdfast"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def is_debugging() -> bool:
    """Return whether errors are raised with their traceback."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
