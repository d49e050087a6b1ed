"""File system calls as steps of a schedule, and a network that repeats them."""

import os
from collections.abc import Callable
from typing import Any

from holdfast.testing.clock import ManualClock
from support.files.watched import WatchedFs
from support.interleaving import Baton

NOTICEABLE = frozenset(
    {
        "rename",
        "link",
        "symlink",
        "readlink",
        "unlink",
        "mkdir",
        "rmdir",
        "stat",
        "listdir",
        "flock",
    }
)


class SteppingFs(WatchedFs):
    """Lets other actors run before each call that they could notice, or that notices them.

    With `repeats`, each rename is sent twice, as a network file system does when the first
    response is lost. The second is refused, because the first was done.
    """

    def __init__(
        self, server_time: Callable[[], float], baton: Baton, *, repeats: bool = False
    ) -> None:
        super().__init__(server_time)
        self._baton, self._repeats = baton, repeats

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name in NOTICEABLE or (name == "open" and _is_shared(*args)):
            self._baton.step()
        result = real(*args, **kwargs)
        if name == "rename" and self._repeats:
            self._baton.step()
            return real(*args, **kwargs)
        if name == "close":
            self._baton.wake()  # a closed file is an unlocked file
        return result


class SteppingClock(ManualClock):
    """A clock whose sleep lets other actors run until one closes a file.

    Code sleeps when a lock is taken, and closing a file releases its lock.
    """

    baton: Baton

    def sleep(self, seconds: float) -> None:
        self.baton.pause()


def _is_shared(path: str, flags: int, *_: object) -> bool:
    """Return whether other actors may notice this open.

    Files in tmp/ are used only by their writer, unless they are in a folder that a sweep may
    remove. The listing of a folder is a step by itself.
    """
    own = path.startswith("tmp/") and path.count("/") == 1
    return not own and not flags & os.O_DIRECTORY
