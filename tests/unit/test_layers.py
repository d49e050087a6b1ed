"""Which part may import which: see also the contracts in pyproject.toml."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
PACKAGES = ["core", "jobs", "conversations", "cli", "lambdas", "config"]


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
@pytest.mark.parametrize("package", PACKAGES)
def test_no_entry_point_or_domain_imports_an_adapter(package: str) -> None:
    """Handlers and workers use QueueManager and the other ports only; bootstrap chooses."""
    files = sorted((SOURCE / package).rglob("*.py"))
    assert files
    offenders = {
        path.name
        for path in files
        if any(module.startswith("holdfast.adapters") for module in imported_modules(path))
    }
    assert offenders == set()
