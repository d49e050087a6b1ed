"""Processes of other users, two of which share a group."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.files.crash import run_in_child

GROUP, ALICE, BOB = 54321, 54322, 54323
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def as_user(uid: int, act: Callable[[], object], umask: int = 0o077) -> None:
    """Run `act` in a process of that user, which is in the group."""

    def play(say: Callable[[str], None]) -> None:
        os.umask(umask)
        os.setgroups([GROUP])
        os.setgid(uid)
        os.setuid(uid)
        act()

    run_in_child(play)


def shared_root(parent: Path) -> Path:
    """Make a root as an administrator does: install -d -m 2770 -g workers."""
    parent.chmod(0o755)
    root = parent / "root"
    root.mkdir()
    os.chown(root, 0, GROUP)
    root.chmod(0o2770)
    return root
