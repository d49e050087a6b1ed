"""Who may read the queue: message bodies, task tokens and tracebacks are in it."""

import grp
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.adapters.local.filesystem.layout import share_command
from holdfast.adapters.modes import access_of
from holdfast.core.checks import CheckResult, ok, warn


def mode_check(folder: Path) -> Iterator[CheckResult]:
    """Judge by the queue's folder alone: who cannot enter it reaches nothing below."""
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    path = shlex.quote(str(folder))
    shared = access_of(status) == "group"
    whose = f"shared with group {_group(status.st_gid)}" if shared else "private"
    if mode & 0o007:
        yield warn(
            "access",
            f"every user of this machine can look into it (mode {mode:04o}): bodies, task "
            "tokens and tracebacks are in there",
            f"chmod -R {'o=' if shared else 'go='} {path}",
        )
    elif shared and not mode & stat.S_ISGID:
        yield warn(
            "access",
            f"{whose}, but new files do not inherit the group (mode {mode:04o})",
            f"find {path} -type d -exec chmod g+s {{}} +",
        )
    elif not shared and mode & 0o070:
        yield warn(
            "access",
            f"its group can look into it, but not work on it (mode {mode:04o})",
            f"chmod -R g= {path}; or share it: {share_command(folder)}",
        )
    else:
        yield ok("access", f"{whose} (mode {mode:04o})")


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
