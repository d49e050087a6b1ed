"""Write results to the terminal and to docs/benchmarks.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.plot import draw
from bench.verdict import Bar, Result

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
INTRODUCTION = f"""# Benchmarks

`make bench` measures Holdfast beside its peers and beside the bare system calls, in one run,
and writes what follows. Figures of different runs or machines do not compare; the ratios do.
A ratio is the median of those of all rounds, so it may differ from that of two medians.

{BEGIN}
{END}
"""


def show(console: Console, result: Result) -> None:
    """Print the results."""
    table = Table(title=f"{result.name}: {result.title}", title_justify="left")
    for number, column in enumerate(result.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    for note in result.notes:
        console.print(f"  {note}", style="dim")
    console.print(_bars_table(result.bars))


def _bars_table(bars: Sequence[Bar]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    for bar in bars:
        style = "green" if bar.met else "yellow" if bar.aim else "bold red"
        table.add_row(f"[{style}]{bar.word}[/]", bar.shown, bar.explained)
    return table


def write(docs: Path, machine: Mapping[str, str], results: Sequence[Result]) -> None:
    """Replace the text between the markers of `docs`, and draw the charts, if there are any."""
    picture = docs.with_suffix(".svg")
    charts = [chart for result in results for chart in result.charts]
    if charts:
        draw(picture, charts)
    text = docs.read_text() if docs.exists() else INTRODUCTION
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    body = "\n".join(_markdown(machine, results, picture.name if charts else ""))
    docs.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}")


def _markdown(machine: Mapping[str, str], results: Sequence[Result], picture: str) -> list[str]:
    facts = "; ".join(f"{name}: {fact}" for name, fact in machine.items())
    lines = ["## Machine", "", f"{facts}.", ""]
    lines += ["## Bars", "", *_write_bars(results), ""]
    lines += [f"![Holdfast beside its peers]({picture})", ""] if picture else []
    for result in results:
        lines += [f"## {result.title}", "", *_rows(result.columns, result.rows), ""]
        lines += [f"* {note}" for note in result.notes] + ([""] if result.notes else [])
    return lines


def _write_bars(results: Sequence[Result]) -> list[str]:
    """Return how many bars are met, and those that are not."""
    bars = [(result.name, bar) for result in results for bar in result.bars]
    missed = [
        (name, bar.explained, bar.shown, f"**{bar.word}**") for name, bar in bars if not bar.met
    ]
    summary = f"{len(bars) - len(missed)} of {len(bars)} bars are met"
    if not missed:
        return [f"{summary}."]
    return [f"{summary}; not these:", "", *_rows(("Benchmark", "Bar", "Figure", ""), missed)]


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    return [_line(columns), _line(rule), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
