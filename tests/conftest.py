"""Being here puts this folder on the import path: tests share `fs` and `models`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fs import scratch


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """As tmp_path, in memory where the machine has that: for thousands of small folders."""
    folder = scratch.new_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
