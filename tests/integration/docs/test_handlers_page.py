"""The tests on docs/how-to/test-handlers.md pass, quickly, with the fixtures of the plugin."""

import re
import subprocess
import sys
import time
from pathlib import Path

from support.paths import ROOT

PAGE = (ROOT / "docs/how-to/test-handlers.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_tests_on_the_page_pass_without_waiting(tmp_path: Path) -> None:
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"test_page_{number}.py").write_text(block)
    started_at = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{PAGE.count('def test_')} passed" in ran.stdout
    assert time.monotonic() - started_at < 60  # and not the days that the delays add up to
