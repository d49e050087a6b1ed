"""The safety pages: each element that keeps Holdfast safe has tests that fail without it."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import TypeGuard

import pytest

from support.paths import ROOT

PAGES = sorted(ROOT.glob("docs/safety*.md"))
SUITES = ROOT / "src/holdfast/testing/contracts"


@cache
def find_tests() -> dict[str, bool]:
    """Return the name of each test on the pages, and whether `make test` runs it."""
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    found: dict[str, bool] = {}
    for path in [*(ROOT / "tests").rglob("*.py"), *SUITES.rglob("*.py")]:
        text = path.read_text()
        if named.isdisjoint(re.findall(r"def (test_\w+)", text)):
            continue
        for name, is_daily in iterate_tests(ast.parse(text)):
            found[name] = found.get(name, False) or is_daily
    return found


def iterate_tests(
    parent: ast.Module | ast.ClassDef, *, is_daily: bool = True
) -> Iterator[tuple[str, bool]]:
    """Yield each test below this one. The mark of a module or a class is that of its tests."""
    marks = [node.value for node in parent.body if is_pytestmark(node)]
    is_daily = is_daily and not is_nightly(marks)
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            its_own = is_daily and not is_nightly(node.decorator_list)
            yield from iterate_tests(node, is_daily=its_own)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, is_daily and not is_nightly(node.decorator_list)


def is_pytestmark(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def is_nightly(marks: Iterable[ast.expr]) -> bool:
    """Return whether one of these marks is `nightly`, for all parameters of a test."""
    texts = [ast.unparse(mark) for mark in marks]
    return any(
        "mark.nightly" in text and not text.startswith("pytest.mark.parametrize")
        for text in texts
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_make_test_runs_a_test_of_each_element(page: Path) -> None:
    tests = find_tests()
    rows = [re.findall(r"`(test_\w+)`", row) for row in page.read_text().splitlines()]
    elements = [names for names in rows if names]
    assert elements
    assert [name for names in elements for name in names if name not in tests] == []
    assert [names for names in elements if not any(tests[name] for name in names)] == []


def test_the_mark_of_a_module_a_class_or_a_test_makes_it_nightly() -> None:
    text = """
    @pytest.mark.nightly
    def test_slow(): ...
    @pytest.mark.parametrize("n", [1, pytest.param(9, marks=pytest.mark.nightly)])
    def test_daily(n): ...
    @pytest.mark.nightly
    class TestSlow:
        def test_of_class(self): ...
    """
    module = dedent(text)
    expected = {"test_slow": False, "test_daily": True, "test_of_class": False}
    assert dict(iterate_tests(ast.parse(module))) == expected
    marked = "pytestmark = [pytest.mark.nightly]" + module
    assert not any(dict(iterate_tests(ast.parse(marked))).values())
