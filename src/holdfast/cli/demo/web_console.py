"""The web console of the demo, in a process of its own, if its extra is installed."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from holdfast.cli.console import info
from holdfast.cli.demo.process import make_environment

_PACKAGES = ("jinja2", "starlette", "uvicorn")
_END_TIMEOUT_SECONDS = 5.0


@contextmanager
def show_in_browser(queues: Sequence[str], folder: Path) -> Iterator[None]:
    """Serve the console while the demo runs, and say where. Without its extra do nothing."""
    if any(find_spec(package) is None for package in _PACKAGES):
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "web", *queues, "--jobs=jobs.db", "--port=0"],
        env=make_environment(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the demo handles Ctrl-C and ends its processes
    )
    assert process.stderr is not None
    try:
        info(f"watch the demo in a browser: {process.stderr.readline().strip()}")
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_END_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
