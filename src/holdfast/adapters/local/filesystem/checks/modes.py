"""The check of the queue's mode: it holds message bodies, task tokens and tracebacks."""

import grp
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from holdfast.adapters.local.filesystem.layout import format_share_command
from holdfast.adapters.modes import get_access
from holdfast.core.checks import CheckResult, ok, warn


def check_mode(folder: Path) -> Iterator[CheckResult]:
    """Check the mode of the queue's folder.

    Its mode alone is enough, because a user that cannot enter it reaches nothing inside.
    """
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    path = shlex.quote(str(folder))
    shared = get_access(status) == "group"
    whose = f"shared with group {_get_group_name(status.st_gid)}" if shared else "private"
    if mode & 0o007:
        yield warn(
            "access",
            f"every user of this machine can enter it (mode {mode:04o}), although it holds "
            "message bodies, task tokens and tracebacks",
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
            f"its group can read it, but not work on it (mode {mode:04o})",
            f"chmod -R g= {path}; or share it: {format_share_command(folder)}",
        )
    else:
        yield ok("access", f"{whose} (mode {mode:04o})")


def _get_group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
