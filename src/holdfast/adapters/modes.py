"""Who may read what Holdfast keeps: its owner alone, or a group of users as well.

Message bodies, task tokens, tracebacks and customers' numbers are in there, so nothing is
left to the umask. It can only take bits away, which private files have no use for; what a
group shares gets its mode after it was made. (The umask itself is the whole process's:
other threads would make files with ours.)
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

Access = Literal["private", "group"]


class Modes(NamedTuple):
    folder: int
    file: int


MODES: dict[Access, Modes] = {
    "private": Modes(0o700, 0o600),
    "group": Modes(0o2770, 0o660),  # setgid: new files inherit the group
}


def access_of(folder: os.stat_result) -> Access:
    """Tell from a folder's mode who may use it."""
    return "group" if folder.st_mode & 0o070 == 0o070 else "private"


def make_folders(folder: Path, access: Access = "private") -> None:
    """Make a folder and those above it that are missing; leave the others as they are."""
    missing = [level for level in (folder, *folder.parents) if not level.is_dir()]
    for level in reversed(missing):
        level.mkdir(MODES[access].folder, exist_ok=True)
        if access == "group":
            with suppress(PermissionError):  # another user was faster, and gives it its mode
                level.chmod(MODES[access].folder)
