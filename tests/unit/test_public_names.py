"""Public names: unique, documented, and enough for every page and example."""

import ast
import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from tools import names, stubs

from holdfast import events
from support.paths import ROOT

FACADES = ["holdfast", "holdfast.aws", "holdfast.chat", "holdfast.events", "holdfast.jobs"]
FACADES += ["holdfast.telemetry", "holdfast.testing", "holdfast.testing.contracts"]
FACADES += ["holdfast.web"]
# Documented paths of their own: Lambda handlers and the Django backend are named by their
# module, and the heartbeat's design document names the last one.
ALLOWED = {*FACADES, "holdfast.django", "holdfast.lambdas", "holdfast.utils.sqs_heartbeat"}
IMPORT = re.compile(r"^\s*(?:from|import) (holdfast[\w.]*)", re.MULTILINE)


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
    return sorted(found)


def test_no_two_public_classes_share_a_name() -> None:
    assert names.shared_class_names() == []


def test_public_functions_are_documented() -> None:
    functions = list(names.public_functions())
    documented = sum(bool(names.ast.get_docstring(function)) for _, function in functions)
    assert documented / len(functions) >= 0.85


@pytest.mark.parametrize("facade", FACADES)
def test_every_public_name_can_be_imported_and_is_listed_once(facade: str) -> None:
    module = importlib.import_module(facade)
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def list_exports(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the names that type checkers see, with the module of each."""
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: str(node.module)
        for node in imports
        for alias in node.names
        if alias.asname == alias.name
    }


@pytest.mark.parametrize(
    ("path", "table"), list(stubs.find_tables()), ids=lambda value: getattr(value, "name", "")
)
def test_type_checkers_see_the_same_public_names(path: Path, table: dict[str, str]) -> None:
    stub = ast.parse(path.with_suffix(".pyi").read_text())
    assert list_exports(ast.walk(stub)) == list_exports(
        ast.walk(ast.parse(stubs.make_stub(table)))
    ), "run tools/stubs.py"


def test_type_checkers_see_the_events_of_products() -> None:
    tree = ast.parse(Path(str(events.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = set(list_exports(ast.walk(block)))
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            source = Path(str(importlib.import_module(str(node.module)).__file__)).read_text()
            seen |= {
                each.name for each in ast.parse(source).body if isinstance(each, ast.ClassDef)
            }
    assert seen - vars(events).keys() == set(events.__all__) - vars(events).keys() != set()


def test_every_facade_has_a_stub_or_lists_its_names_itself() -> None:
    with_stub = {path for path, _ in stubs.find_tables()}
    without = {
        facade
        for facade in FACADES
        if Path(str(importlib.import_module(facade).__file__)) not in with_stub
    }
    assert without == {"holdfast.events"}


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Wroker'"):
        importlib.import_module("holdfast").Wroker  # noqa: B018


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_and_examples_import_public_names_only(page: Path) -> None:
    deep = {
        module
        for module in IMPORT.findall(page.read_text())
        if module not in ALLOWED and not module.startswith("holdfast.lambdas.")
    }
    assert deep == set()
