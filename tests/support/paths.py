"""Where the repository is, and the environment in which its child processes find `support`."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def make_child_environment() -> dict[str, str]:
    """Return this environment with the folder of the tests on the import path."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def make_mypy_environment() -> dict[str, str]:
    """Return variables with which mypy finds the package, and the cache of `make types`."""
    return {"MYPYPATH": str(ROOT / "src"), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}
