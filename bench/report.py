"""Results as values, and how they are shown, written and drawn.

A page has what a reader wants to know: the tables and the bars that are missed. The run's JSON
has the machine, every bar and the figures of every round.
"""

import json
import os
import platform
import sqlite3
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.session import Measured

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
PACKAGES = ("dirq", "persist-queue", "litequeue", "huey", "task-queue", "pydantic", "boto3",
            "ministack", "celery", "dramatiq-sqs", "taskiq-aio-sqs")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise of the project, with the measured figure."""

    promise: str
    figure: float
    limit: float
    unit: str
    at_least: bool = True
    aim: bool = False  # an aim is shown, but missing it is not a failure
    bound: str = ""  # what limits the figure, as measured; shown if the bar is missed

    @property
    def met(self) -> bool:
        """Return whether the bar is met."""
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    @property
    def shown(self) -> str:
        """Return the figure as text."""
        digits = 0 if abs(self.figure) >= 1000 or self.figure == int(self.figure) else 2
        return f"{self.figure:,.{digits}f} {self.unit}".strip()

    @property
    def verdict(self) -> str:
        """Return the promise, its figure and its bound in a line."""
        kind = "aim" if self.aim else "bar"
        bound = f"; {self.bound}" if self.bound and not self.met else ""
        return f"{kind} {'met' if self.met else 'missed'}: {self.promise} ({self.shown}{bound})"


def at_most(promise: str, figure: float, limit: float, unit: str = "", **more: Any) -> Bar:
    """Return a bar that a figure must not exceed."""
    return Bar(promise, figure, limit, unit, at_least=False, **more)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a result, with one group of bars per label."""

    title: str
    axis: str
    labels: Sequence[str]
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a benchmark: its table, its bars, and every figure."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[Bar]
    measured: Measured
    note: str = ""  # what a reader needs to understand the table, in a sentence or two
    charts: Sequence[Chart] = ()


def describe_machine(folder: Path, arena: str) -> dict[str, str]:
    """Return the facts of this machine."""
    cores, memory = len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * 4096
    kind = subprocess.run(
        ["df", "--output=fstype", str(folder)], capture_output=True, text=True, check=False
    )
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        "Cores": f"{cores} cores ({_read_processor()})",
        "Memory": f"{memory / 1024**3:.0f} GiB",
        "Kernel": f"{platform.system()} {platform.release()}",
        "Filesystem": f"{kind.stdout.split()[-1]}; {arena}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}, built "
        f"with{'' if optimized else 'out'} optimizations",
        "SQLite": sqlite3.sqlite_version,
        "Packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "Load before": f"{os.getloadavg()[0]:.2f}",
    }


def _read_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def show(console: Console, name: str, result: Result) -> None:
    """Print a result."""
    table = Table(title=f"{name}: {result.title}", title_justify="left")
    for number, column in enumerate(result.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    for bar in result.bars:
        style = "green" if bar.met else "yellow" if bar.aim else "bold red"
        console.print(f"  {bar.verdict}", style=style, highlight=False)


def write_json(path: Path, machine: Mapping[str, str], results: Mapping[str, Result]) -> None:
    """Write everything that was measured."""
    content = {
        name: {
            "title": result.title,
            "bars": [asdict(bar) | {"met": bar.met} for bar in result.bars],
            "rounds": dict(result.measured.rounds),
        }
        for name, result in results.items()
    }
    path.write_text(json.dumps({"machine": machine, "results": content}, indent=1) + "\n")


def write_page(page: Path, machine: Mapping[str, str], results: Sequence[Result]) -> None:
    """Replace the text between the markers of a page, and draw its charts, if there are any."""
    charts = [chart for result in results for chart in result.charts]
    bars = [bar for result in results for bar in result.bars]
    facts = ("Cores", "Kernel", "Python", "Packages", "Rounds")
    lines = ["; ".join(machine[fact] for fact in facts) + ".", ""]
    lines += [f"{sum(bar.met for bar in bars)} of {len(bars)} bars are met.", ""]
    if charts:
        picture = page.with_suffix(".svg")
        draw(picture, charts)
        lines += [f"![Holdfast beside its peers]({picture.name})", ""]
    for result in results:
        missed = [f"* {bar.verdict}" for bar in result.bars if not bar.met]
        lines += [f"## {result.title}", "", *_make_table(result.columns, result.rows), ""]
        lines += [
            *([result.note, ""] if result.note else []),
            *missed,
            *([""] if missed else []),
        ]
    before, rest = page.read_text().split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"{END}{after}")


def _make_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    lines = [[cell.replace("|", "\\|") for cell in cells] for cells in (columns, rule, *rows)]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


_HOLDFAST = {
    "Holdfast": "#0b6e4f", "Holdfast SQLite": "#3aa981", "Holdfast, 1 thread": "#3aa981",
}  # fmt: skip
_PEERS = ("#8d99ae", "#adb5bd", "#6c757d", "#ced4da", "#495057", "#a5a58d", "#b7b7a4")


def draw(path: Path, charts: Sequence[Chart]) -> None:
    """Draw charts into a file, with the same colour for a contender in each."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    # The same figures must give the same file, or every run would change the repository.
    matplotlib.rcParams["svg.hashsalt"] = "holdfast"
    from matplotlib import pyplot

    size = (8, 3.2 * len(charts))
    figure, panels = pyplot.subplots(
        len(charts), 1, figsize=size, squeeze=False, layout="constrained"
    )
    names = dict.fromkeys(name for chart in charts for name in chart.values)
    others = [name for name in names if name not in _HOLDFAST]
    colours = _HOLDFAST | dict(zip(others, _PEERS * len(others), strict=False))
    for panel, chart in zip(panels[:, 0], charts, strict=True):
        width = 0.8 / len(chart.values)
        for number, (name, values) in enumerate(chart.values.items()):
            places = [group + (number + 0.5) * width - 0.4 for group in range(len(values))]
            drawn = panel.bar(places, values, width * 0.9, label=name, color=colours[name])
            panel.bar_label(drawn, fmt="{:,.0f}", fontsize=7)
        panel.set_title(chart.title, loc="left")
        panel.set_ylabel(chart.axis)
        panel.set_xticks(range(len(chart.labels)), chart.labels)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
