"""`make bench` takes an hour, so here its modules are only imported, and a page is written."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from bench.__main__ import BENCHMARKS
from bench.report import BEGIN, END, Bar, Result, at_most, write_json, write_page
from bench.session import Measured

ROOT = Path(__file__).parents[2]


def test_every_benchmark_can_be_imported() -> None:
    imports = "\n".join(
        f"from bench.{module} import run_{name}" for name, module in BENCHMARKS.items()
    )
    ran = subprocess.run(
        [sys.executable, "-c", imports], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_page_has_the_table_and_the_missed_bars_and_the_json_every_round(
    tmp_path: Path,
) -> None:
    measured = Measured()
    measured.rounds |= {
        "Holdfast": [{"rate": 90.0}, {"rate": 110.0}],
        "dirq": [{"rate": 100.0}],
    }
    bars = [Bar("ahead of dirq", 0.9, 1.0, "×"), at_most("no lease lost", 0, 0)]
    rows = measured.make_rows(("rate", "{:,.0f}"))
    result = Result("Cycle", ("", "messages/s"), rows, bars, measured, "A note.")
    page, machine = tmp_path / "page.md", defaultdict(lambda: "fact")
    page.write_text(f"before\n{BEGIN}\nformer\n{END}\nafter\n")
    write_page(page, machine, [result])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "former" not in text
    assert "1 of 2 bars are met." in text
    assert "| Holdfast | 100 |" in text
    assert "bar missed: ahead of dirq (0.90 ×)" in text
    assert "no lease lost" not in text
    write_json(tmp_path / "run.json", {}, {"cycle": result})
    run = json.loads((tmp_path / "run.json").read_text())["results"]["cycle"]
    assert [bar["met"] for bar in run["bars"]] == [False, True]
    assert run["rounds"] == measured.rounds
