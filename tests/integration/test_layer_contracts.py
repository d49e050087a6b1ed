"""The contracts between the layers, checked as `make check` does."""

import subprocess
import sys

import pytest

from support.paths import ROOT


@pytest.mark.requirement(
    "R004-012", "R004-076", "R004-133", "R004-134", "R004-171", "R004-186", "R004-210"
)
def test_the_contracts_between_the_layers_are_kept() -> None:
    """Jobs use ports,
    adapters implement them; checked as `make check` does."""
    program = "from importlinter.cli import lint_imports_command as run; run()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout.decode()
    assert b"0 broken" in ran.stdout
