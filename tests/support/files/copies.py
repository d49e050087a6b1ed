"""Copies of a queue folder, as exact as a program can make them."""

import os
import shutil
from pathlib import Path


def copy_with_links(source: Path, target: Path) -> None:
    """Copy a folder. Names of one file are names of one file in the copy, too."""
    copies: dict[int, str] = {}

    def copy(name: str, copied_name: str) -> None:
        inode = os.stat(name).st_ino
        if inode in copies:
            os.link(copies[inode], copied_name)
        else:
            copies[inode] = shutil.copy2(name, copied_name)

    shutil.copytree(source, target, symlinks=True, copy_function=copy)
