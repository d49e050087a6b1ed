"""Run the Python examples in docs/ and check links. test_first_hour.py runs the README."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.paths import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def run(code: list[str], folder: Path) -> str:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    ran = subprocess.run(code, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=page_name)
def test_python_on_the_page_runs(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "python"):
        script = tmp_path / "page.py"
        script.write_text(f"{block}\n")
        assert run([sys.executable, str(script)], tmp_path) is not None


def test_the_recipe_for_every_night_pushes_a_tick_once_from_several_processes(
    tmp_path: Path,
) -> None:
    [recipe] = [
        block
        for block in blocks(ROOT / "docs/how-to/tasks.md", "python")
        if "def push_report" in block
    ]
    (tmp_path / "tasks.py").write_text(recipe)
    with ThreadPoolExecutor(4) as pool:  # each script checks that one message waits
        scripts = [pool.submit(run, [sys.executable, "tasks.py"], tmp_path) for _ in range(4)]
    assert [script.result() for script in scripts] == [""] * 4


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=page_name)
def test_links_have_a_target(page: Path) -> None:
    broken = [to for to in LINK.findall(page.read_text()) if not (page.parent / to).exists()]
    assert broken == []
