"""Show the demo: a live view on a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from holdfast.lease.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.demo.act import Act

_MAX_LINES = 9  # of the event list in the live view
_REPORT_SECONDS = 3.0  # between two progress lines


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A line of a report: its key in JSON, a label, a count, and an explanation."""

    key: str
    label: str
    count: int
    note: str = ""
    wrong: object = False  # true if the count shows a fault


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The accounting report of an act. `terms` explains the labels of its rows.

    `more` are values that only JSON has, or has in another form.
    """

    rows: Sequence[ReportRow]
    terms: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def totals_match(self) -> bool:
        """Return whether every count is as expected: nothing was lost or done twice."""
        return not any(row.wrong for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        counts = {row.key: row.count for row in self.rows}
        return {**counts, **self.more, "totals_match": self.totals_match}


class DemoScreen:
    """Shows one act: the state and the last events in place, or a line for each event."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream, self._title = stream, title
        self._live: Live | None = None
        if stream.isatty():
            console = Console(file=stream, highlight=False)
            self._live = Live(console=console, auto_refresh=False)
        self._started = SYSTEM_CLOCK.monotonic()
        self._draw_at = 0.0
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)

    def __enter__(self) -> Self:
        if self._live is None:
            self._write(self._title)
        else:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _elapsed(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._started

    def report(self, text: str) -> None:
        """Show an event with the time."""
        line = f"{self._elapsed():5.1f} s  {text}"
        if self._live is None:
            self._write(line)
        else:
            self._lines.append(line)

    def draw(self, act: "Act") -> None:
        """Redraw the state, or write a progress line if the last was a few seconds ago."""
        if self._live is not None:
            self._live.update(self._render(act), refresh=True)
        elif (now := SYSTEM_CLOCK.monotonic()) >= self._draw_at:
            self._draw_at = now + _REPORT_SECONDS
            self.report(act.format_line())

    def _render(self, act: "Act") -> Group:
        assert self._live is not None
        console = self._live.console
        lines = [
            part
            for line in list(self._lines)
            for part in Text(line).wrap(console, console.width)
        ][-_MAX_LINES:]
        lines += [Text("")] * (_MAX_LINES - len(lines))  # keep the height constant
        title = Text.assemble((f"{self._title}  ", "bold"), (f"{self._elapsed():.0f} s", "dim"))
        return Group(title, *act.render(), "", _render_processes(act), "", *lines)

    def show_report(self, report: DemoReport) -> None:
        """Show the accounting report at the end."""
        match = report.totals_match
        verdict = "The totals match." if match else "THE TOTALS DO NOT MATCH."
        if self._live is not None:
            self._show_table(report, verdict)
            return
        self._write("")
        width = max(len(row.label) for row in report.rows) + 1
        for row in report.rows:
            self._write(f"{row.label:<{width}}{row.count:>6}  {row.note}".rstrip())
        self._write(f"{verdict} {report.terms}\n")

    def _show_table(self, report: DemoReport, verdict: str) -> None:
        assert self._live is not None
        table = Table("", Column(justify="right"), "", box=box.SIMPLE, show_header=False)
        for row in report.rows:
            style = "bold red" if row.wrong else "bold" if row.count else "bold green"
            count = Text(f"{row.count:,}", style=style)
            table.add_row(Text(row.label), count, Text(row.note, style="dim"))
        console = self._live.console
        console.print(table)
        console.print(Text(verdict, "bold green" if report.totals_match else "bold red"))
        console.print(Text(f"{report.terms}\n", style="dim"))


def _render_processes(act: "Act") -> Table:
    headings = (act.noun, "pid", *act.columns, "")
    table = Table(*headings, box=None, pad_edge=False, header_style="dim")
    for process in act.started:
        state = process.outcome or ("running" if process.counts else "starting")
        style = "red" if process.killed else "green"
        outcome = Text(state, style, overflow="fold")
        more = [describe(process) for describe in act.columns.values()]
        table.add_row(str(process.number), str(process.pid), *more, outcome)
    return table
