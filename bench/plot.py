"""Draw the charts of docs/benchmarks.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.verdict import Chart

HOLDFAST = {
    "Holdfast": "#0b6e4f",
    "Holdfast SQLite": "#3aa981",
    "Holdfast, 1 thread": "#3aa981",
}
OTHERS = ("#8d99ae", "#adb5bd", "#6c757d", "#ced4da", "#495057", "#a5a58d", "#b7b7a4")


def draw(path: Path, charts: Sequence[Chart]) -> None:
    """Draw the charts into a file."""
    if not charts:
        return
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    # The same figures must give the same file, or every run would change the repository.
    matplotlib.rcParams["svg.hashsalt"] = "holdfast"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(charts), 1, figsize=(8, 3.2 * len(charts)), squeeze=False, layout="constrained"
    )
    colours = _colours(charts)
    for panel, chart in zip(panels[:, 0], charts, strict=True):
        _draw_chart(panel, chart, colours)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _colours(charts: Sequence[Chart]) -> dict[str, str]:
    """Return the colour of a contender, which is the same in every chart."""
    names = dict.fromkeys(name for chart in charts for name in chart.values)
    others = [name for name in names if name not in HOLDFAST]
    return {**HOLDFAST, **dict(zip(others, OTHERS * len(others), strict=False))}


def _draw_chart(panel: Any, chart: Chart, colours: Mapping[str, str]) -> None:
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
