"""Pages name files that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

from support.paths import ROOT

PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
NAMED = re.compile(r"`([\w./-]+\.py)`")
FOLDERS = [ROOT / name for name in ("src", "tests", "tools", "bench", "examples", "infra")]


@cache
def list_files() -> set[str]:
    return {"/" + str(path.relative_to(ROOT)) for of in FOLDERS for path in of.rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_files_that_exist(page: Path) -> None:
    files = list_files()
    named = set(NAMED.findall(page.read_text()))
    assert [
        name for name in sorted(named) if not any(f.endswith("/" + name) for f in files)
    ] == []
