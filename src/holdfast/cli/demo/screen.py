"""Show the demo: a live view on a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.console import RenderableType

_MAX_LINES = 9  # of the event list in the live view
_REPORT_SECONDS = 3.0  # between two progress lines


class DemoView(Protocol):
    """The current state of a scenario, as a line and as a live view."""

    def format_line(self) -> str:
        """Return the state as one line."""

    def render(self) -> "Sequence[RenderableType]":
        """Return the state as rich draws it."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A line of a report: a label, a count, and an explanation."""

    label: str
    count: int
    note: str = ""
    wrong: bool = False


class DemoReport(Protocol):
    """The accounting report of a scenario."""

    @property
    def totals_match(self) -> bool:
        """Return whether nothing was lost or done twice."""

    def list_rows(self) -> Sequence[ReportRow]:
        """Return the lines of the report."""

    def explain_terms(self) -> str:
        """Return what the labels mean."""


class DemoScreen(Protocol):
    """Shows one scenario."""

    def report(self, text: str) -> None:
        """Report an event of the scenario."""

    def draw(self, view: DemoView) -> None:
        """Draw the current state."""

    def show_report(self, report: DemoReport) -> None:
        """Show the accounting report at the end."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def open_screen(stream: TextIO, title: str) -> DemoScreen:
    """Return a live screen for a terminal, or a plain one."""
    return LiveScreen(stream, title) if stream.isatty() else PlainScreen(stream, title)


def format_verdict(report: DemoReport) -> str:
    """Return whether the totals match, in words."""
    return "The totals match." if report.totals_match else "THE TOTALS DO NOT MATCH."


class PlainScreen:
    """A screen that writes lines."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream, self._title = stream, title
        self._started = SYSTEM_CLOCK.monotonic()
        self._report_at = 0.0

    def report(self, text: str) -> None:
        """Write a line with the time."""
        self._write(f"{SYSTEM_CLOCK.monotonic() - self._started:5.1f} s  {text}")

    def draw(self, view: DemoView) -> None:
        """Write a progress line, if the last one was a few seconds ago."""
        if (now := SYSTEM_CLOCK.monotonic()) >= self._report_at:
            self._report_at = now + _REPORT_SECONDS
            self.report(view.format_line())

    def show_report(self, report: DemoReport) -> None:
        """Write the accounting report."""
        self._write("")
        width = max(len(row.label) for row in report.list_rows()) + 1
        for row in report.list_rows():
            self._write(f"{row.label:<{width}}{row.count:>6}  {row.note}".rstrip())
        self._write(f"{format_verdict(report)} {report.explain_terms()}\n")

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        self._write(self._title)
        return self

    def __exit__(self, *_: object) -> None: ...


class LiveScreen:
    """A screen that redraws the state and the last events in place."""

    def __init__(self, stream: TextIO, title: str) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._title = title
        self._console: Console = Console(file=stream, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False)
        self._started = SYSTEM_CLOCK.monotonic()
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)

    def report(self, text: str) -> None:
        """Add a line with the time to the event list."""
        self._lines.append(f"{self._elapsed():5.1f} s  {text}")

    def _elapsed(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._started

    def draw(self, view: DemoView) -> None:
        """Redraw the state and the event list."""
        self._live.update(self._render(view), refresh=True)

    def _render(self, view: DemoView) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in list(self._lines)]
        lines += [Text("")] * (_MAX_LINES - len(lines))  # keep the height constant
        title = Text.assemble((f"{self._title}  ", "bold"), (f"{self._elapsed():.0f} s", "dim"))
        return Group(title, *view.render(), Text(""), *lines)

    def show_report(self, report: DemoReport) -> None:
        """Print the accounting report as a table."""
        from rich import box
        from rich.table import Column, Table
        from rich.text import Text

        table = Table("", Column(justify="right"), "", box=box.SIMPLE, show_header=False)
        for row in report.list_rows():
            style = "bold red" if row.wrong else "bold" if row.count else "bold green"
            count = Text(f"{row.count:,}", style=style)
            table.add_row(Text(row.label), count, Text(row.note, style="dim"))
        self._console.print(table)
        style = "bold green" if report.totals_match else "bold red"
        self._console.print(Text(format_verdict(report), style=style))
        self._console.print(Text(f"{report.explain_terms()}\n", style="dim"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
