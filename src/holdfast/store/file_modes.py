"""File modes: whether Holdfast's files are for their owner only, or for a group as well.

The files hold message bodies, task tokens, tracebacks and customers' numbers, so their modes
do not depend on the umask. The umask can only remove bits, which does not matter for private
files. Files that a group shares get their mode after they are made. (The umask itself is not
changed, because it belongs to the whole process, and other threads would make files with it.)
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

Access = Literal["private", "group"]


class Modes(NamedTuple):
    """The modes of new folders and files."""

    folder: int
    file: int


MODES: dict[Access, Modes] = {
    "private": Modes(0o700, 0o600),
    "group": Modes(0o2770, 0o660),  # setgid: new files inherit the group
}


def get_access(folder: os.stat_result) -> Access:
    """Return the access of a folder, according to its mode."""
    return "group" if folder.st_mode & 0o070 == 0o070 else "private"


def make_folders(folder: Path, access: Access = "private") -> None:
    """Make a folder and its missing parents; leave existing folders unchanged.

    Raises OSError, whose text names what is in a folder's place.
    """
    missing = [level for level in (folder, *folder.parents) if not level.is_dir()]
    for level in reversed(missing):
        require_no_file(level)
        level.mkdir(MODES[access].folder, exist_ok=True)
        if access == "group":
            with suppress(PermissionError):  # another user made it first and sets its mode
                level.chmod(MODES[access].folder)


def require_no_file(folder: Path) -> None:
    """Raise NotADirectoryError if the path of a folder, or a part of it, is a file."""
    for level in (folder, *folder.parents):
        if level.is_dir():
            return
        if os.path.lexists(level):
            raise NotADirectoryError(
                errno.ENOTDIR, f"{str(level)!r} is not a folder", str(level)
            )
