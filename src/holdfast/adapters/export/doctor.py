"""doctor for exports: can files be fetched here, and put where they belong?"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from holdfast.adapters.export.partial_files import PartialFiles
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.jobs.file_names import OWN_FOLDER

_LITTLE_BYTES = 1 << 30


def downloads() -> CheckResult:
    try:
        import pycurl
    except ImportError:
        return fail("pycurl", "is not installed", "pip install 'holdfast[export]'")
    return ok("pycurl", f"is there, with libcurl {pycurl.version_info()[1]}")


def folder(target: str) -> Iterator[CheckResult]:
    """The target's folder, or where it would be made. Nothing is left behind."""
    path = Path(target)
    if path.exists() and not path.is_dir():
        yield fail("target", f"{target} is a file", "name a folder")
        return
    there = next(
        above for above in (path.absolute(), *path.absolute().parents) if above.exists()
    )
    try:
        _try_to_write(there, whole=path.exists())
    except OSError as error:
        yield fail("target", f"{there}: {error.strerror}", "allow this user to write there")
        return
    made = "" if path.exists() else "; it will be made"
    yield ok("target", f"{target} can be written to{made}")
    yield from _room(there)


def _try_to_write(folder: Path, *, whole: bool) -> None:
    probe = folder / f".holdfast-doctor-{secrets.token_hex(8)}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    probe.unlink()
    own = folder / OWN_FOLDER
    if whole and own.exists():
        PartialFiles(str(own)).close()  # refuses a link in its place


def _room(there: Path) -> Iterator[CheckResult]:
    disk = os.statvfs(there)
    free = disk.f_bavail * disk.f_frsize
    if free < _LITTLE_BYTES:
        text = f"{free / 1e6:,.0f} MB are free"
        yield warn("space", text, "make room, or use another disk")
    else:
        yield ok("space", f"{free / 1e9:,.1f} GB are free")
