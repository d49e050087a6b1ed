"""Folders for tests that make thousands of small files."""

import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


def new_folder() -> Path:
    """Make a folder, in memory if the machine allows it. The caller removes it."""
    where = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="holdfast-", dir=where))
