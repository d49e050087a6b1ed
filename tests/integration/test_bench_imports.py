"""`make bench` takes an hour, and nothing else imports its modules."""

import subprocess
import sys
from pathlib import Path

from bench.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]


def test_every_benchmark_can_be_imported() -> None:
    imports = "\n".join(
        f"from bench.{module} import run_{name}" for name, module in BENCHMARKS.items()
    )
    ran = subprocess.run(
        [sys.executable, "-c", imports], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
