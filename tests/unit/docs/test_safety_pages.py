"""The safety pages: each element that keeps Holdfast safe has tests that fail without it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from support.paths import ROOT

PAGES = sorted(ROOT.glob("docs/safety*.md"))
SUITES = ROOT / "src/holdfast/testing/contracts"


@cache
def find_tests() -> dict[str, bool]:
    """Return the name of each test, and whether `make test` runs it."""
    files = [*(ROOT / "tests").rglob("*.py"), *SUITES.rglob("*.py")]
    found: dict[str, bool] = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                is_daily = not any(
                    "nightly" in ast.unparse(mark) for mark in node.decorator_list
                )
                found[node.name] = found.get(node.name, False) or is_daily
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_make_test_runs_a_test_of_each_element(page: Path) -> None:
    tests = find_tests()
    rows = [re.findall(r"`(test_\w+)`", row) for row in page.read_text().splitlines()]
    elements = [names for names in rows if names]
    assert elements
    assert [name for names in elements for name in names if name not in tests] == []
    assert [names for names in elements if not any(tests[name] for name in names)] == []
