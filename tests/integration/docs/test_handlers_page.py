"""The tests on docs/how-to/test-handlers.md pass, quickly, with the fixtures of the plugin."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.paths import ROOT, make_mypy_environment

PAGE = (ROOT / "docs/how-to/test-handlers.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a test module for each block of the page."""
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"test_page_{number}.py").write_text(block)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words, str(folder)],
        cwd=folder,
        env={**make_mypy_environment(), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_tests_on_the_page_pass_without_waiting(folder: Path) -> None:
    started_at = time.monotonic()
    ran = run(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{PAGE.count('def test_')} passed" in ran.stdout
    assert time.monotonic() - started_at < 60  # and not the days that the delays add up to


def test_the_page_is_typed(folder: Path) -> None:
    ran = run(folder, "mypy", "--strict", "--config-file=")
    assert ran.returncode == 0, ran.stdout + ran.stderr
