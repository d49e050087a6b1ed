"""The web console of the demo, in a process of its own, if its extra is installed."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from holdfast.cli.console import info
from holdfast.demo.process import make_environment
from holdfast.version import format_install_command

_PACKAGES = ("jinja2", "starlette", "uvicorn")
_END_TIMEOUT_SECONDS = 5.0


@contextmanager
def show_in_browser(shown: Sequence[str], folder: Path) -> Iterator[None]:
    """Serve the console while the demo runs, and say where, or else what it needs."""
    if any(find_spec(package) is None for package in _PACKAGES):
        info(f"to watch the demo in a browser: {format_install_command('web')}")
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "web", *shown, "--port=0"],
        env={**make_environment(), "HOLDFAST_DATA_DIR": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the demo handles Ctrl-C and ends its processes
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline().strip()
        address = re.search(r"http://\S+", line)
        info(f"watch the demo in a browser: {address[0] if address else line}")
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_END_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
