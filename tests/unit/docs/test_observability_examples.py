"""The dashboard and the alert rules name metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.telemetry.metrics import Counter, Gauge, Histogram, list_metrics
from support.paths import ROOT

FOLDER = ROOT / "examples/observability"
PAGE = ROOT / "docs/how-to/trace-and-measure.md"
RULES = (FOLDER / "alerts.yml").read_text()
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
NAME = re.compile(r"\bholdfast_\w+")
LABELS = re.compile(r"(holdfast_\w+)\{([^}]*)\}")
SUFFIXES = {
    Counter: ("_total",),
    Gauge: ("",),
    Histogram: ("_bucket", "_sum", "_count"),
}
SAMPLES = {
    metric.prometheus_name + suffix: metric
    for metric in list_metrics()
    for suffix in SUFFIXES[type(metric)]
}


def list_expressions() -> list[str]:
    rules = re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE)
    panels = [target["expr"] for panel in list_panels() for target in panel["targets"]]
    queries = [variable["query"] for variable in DASHBOARD["templating"]["list"]]
    return [*rules, *panels, *queries]


def list_panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("expression", list_expressions())
def test_every_metric_of_an_expression_exists_with_its_labels(expression: str) -> None:
    for name in NAME.findall(expression):
        assert name in SAMPLES
    for name, conditions in LABELS.findall(expression):
        labels = re.findall(r"(\w+)(?:=~|!~|!=|=)", conditions)
        assert set(labels) <= set(SAMPLES[name].labels)
    grouped = {
        label.strip()
        for labels in re.findall(r"by \(([^)]*)\)", expression)
        for label in labels.split(",")
    }
    known = {label for name in NAME.findall(expression) for label in SAMPLES[name].labels}
    assert grouped <= known | {"le"}


def test_the_rules_and_the_dashboard_are_complete() -> None:
    assert RULES.count("- alert:") == RULES.count("expr:") == RULES.count("summary:")
    shown = {SAMPLES[name].name for text in list_expressions() for name in NAME.findall(text)}
    needed = {
        "queue.depth", "queue.oldest_seconds", "renewals", "renewal_late_seconds",
        "leases_lost", "taken_over", "children_killed", "attempts", "attempt_seconds",
        "heartbeat.success", "heartbeat.failure", "chat.parked",
    }  # fmt: skip
    assert needed <= shown


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        taken = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells
        cells |= taken


def test_the_page_lists_every_metric_with_its_labels() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE
    )
    on_page = {name: (kind.strip(), tuple(re.findall(r"`(\w+)`", labels)))
               for name, kind, labels in rows}  # fmt: skip
    assert on_page == {
        metric.name: (type(metric).__name__.lower(), metric.labels) for metric in list_metrics()
    }
