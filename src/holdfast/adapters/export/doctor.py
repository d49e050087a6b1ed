"""Checks of `doctor` for exports: can files be downloaded here, and be published?"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from holdfast.adapters.export.partial_files import PartialFiles
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.jobs.file_names import OWN_FOLDER

_MIN_FREE_BYTES = 1 << 30


def check_pycurl() -> CheckResult:
    """Check that pycurl is installed."""
    try:
        import pycurl
    except ImportError:
        return fail("pycurl", "is not installed", "pip install 'holdfast[export]'")
    return ok("pycurl", f"is installed, with libcurl {pycurl.version_info()[1]}")


def check_folder(target: str) -> Iterator[CheckResult]:
    """Check the target's folder, or the folder in which it would be made.

    The check removes every file that it makes.
    """
    path = Path(target)
    if path.exists() and not path.is_dir():
        yield fail("target", f"{target} is a file", "name a folder")
        return
    existing = next(
        above for above in (path.absolute(), *path.absolute().parents) if above.exists()
    )
    try:
        _try_to_write(existing, is_target=path.exists())
    except OSError as error:
        yield fail("target", f"{existing}: {error.strerror}", "allow this user to write there")
        return
    made = "" if path.exists() else "; it will be made"
    yield ok("target", f"{target} can be written to{made}")
    yield from _check_space(existing)


def _try_to_write(folder: Path, *, is_target: bool) -> None:
    probe = folder / f".holdfast-doctor-{secrets.token_hex(8)}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    probe.unlink()
    own = folder / OWN_FOLDER
    if is_target and own.exists():
        PartialFiles(str(own)).close()  # raises if a link is in its place


def _check_space(folder: Path) -> Iterator[CheckResult]:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < _MIN_FREE_BYTES:
        text = f"{free / 1e6:,.0f} MB are free"
        yield warn("space", text, "free some space, or use another disk")
    else:
        yield ok("space", f"{free / 1e9:,.1f} GB are free")
