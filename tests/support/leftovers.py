"""What a test leaves in its process.

Threads and descriptors of earlier tests may end at any time. So a test compares what there is,
not how many there are.
"""

import os
import threading
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd") if os.path.exists("/proc/self/fd") else Path("/dev/fd")


class Leftovers:
    """Finds threads and descriptors that were not there when this was made."""

    def __init__(self) -> None:
        self._threads, self._descriptors = set(threading.enumerate()), _list_descriptors()

    @property
    def threads(self) -> set[threading.Thread]:
        """The new threads that run."""
        return set(threading.enumerate()) - self._threads

    @property
    def descriptors(self) -> set[tuple[str, str]]:
        """The new descriptors, with what each refers to."""
        return _list_descriptors() - self._descriptors


def _list_descriptors() -> set[tuple[str, str]]:
    """List open descriptors. That of the listing is closed when it is looked at."""
    links = [_DESCRIPTORS / name for name in os.listdir(_DESCRIPTORS)]
    return {(link.name, _read_link(link)) for link in links if os.path.lexists(link)}


def _read_link(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # it was closed meanwhile, or the system shows no links
        return ""
