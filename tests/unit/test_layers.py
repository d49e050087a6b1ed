"""Which part may import which: see also the contracts in pyproject.toml."""

import ast
import re
from pathlib import Path

import pytest

from support.paths import ROOT

SOURCE = ROOT / "src" / "holdfast"
ENGINE = ["lease", "queue", "worker", "process"]


def imported_modules(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside functions."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    return modules


@pytest.mark.requirement("R001-003")
@pytest.mark.parametrize("room", ENGINE)
def test_the_engine_names_no_queue_and_no_product(room: str) -> None:
    """Handlers and workers use QueueManager only."""
    files = sorted((SOURCE / room).rglob("*.py"))
    assert files
    rooms = {
        module.split(".")[1]
        for path in files
        for module in imported_modules(path)
        if module.startswith("holdfast.")
    }
    assert rooms <= {*ENGINE, "_lazy", "errors", "events", "text", "durations", "listing"}


def test_the_map_in_architecture_matches_the_tree() -> None:
    """Each room has a row, and no row has a room or a module that does not exist."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rows = {
        name
        for names in re.findall(r"^\| (`[a-z_`, ]+`) \| .* \|$", page, re.MULTILINE)
        for name in re.findall(r"`([a-z_]+)`", names)
    }
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")}
    assert rooms <= rows <= rooms | modules
