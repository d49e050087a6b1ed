"""Folders for tests that make thousands of small files."""

import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


def new_folder() -> Path:
    """In memory where the machine has that; the caller removes it."""
    where = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="holdfast-", dir=where))
