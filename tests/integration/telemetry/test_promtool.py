"""The alert rules of the examples, as Prometheus reads them."""

import shutil
import subprocess

import pytest

from support.paths import ROOT


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian package prometheus)",
)
def test_promtool_accepts_the_rules() -> None:
    rules = ROOT / "examples/observability/alerts.yml"
    command = ["promtool", "check", "rules", str(rules)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
