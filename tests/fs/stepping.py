"""File system calls as steps of a schedule, and a network that repeats them."""

import fcntl
import os
from collections.abc import Callable
from typing import Any

from fs.schedule import Baton
from fs.watched import WatchedFs

NOTICEABLE = frozenset({"rename", "link", "unlink", "mkdir", "rmdir", "stat", "listdir"})


class SteppingFs(WatchedFs):
    """Lets others go first before each call they could notice, or that could notice them.

    With `repeats`, each rename is sent twice, as a network file system does when the first
    answer is lost: done, and then refused because it was done.
    """

    def __init__(
        self, server_time: Callable[[], float], baton: Baton, *, repeats: bool = False
    ) -> None:
        super().__init__(server_time)
        self._baton, self._repeats = baton, repeats

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "flock":
            return self._take_turns(*args)
        if name in NOTICEABLE or (name == "open" and _is_shared(*args)):
            self._baton.step()
        result = real(*args, **kwargs)
        if name == "rename" and self._repeats:
            self._baton.step()
            return real(*args, **kwargs)
        if name == "close":
            self._baton.wake()  # a closed file is an unlocked file
        return result

    def _take_turns(self, fd: int, operation: int) -> None:
        self._baton.step()
        self._baton.wait_until(lambda: _try_lock(fd, operation))


def _is_shared(path: str, flags: int, *_: object) -> bool:
    """Files in tmp/ are their writer's own, unless they are in a folder that somebody may
    sweep; a folder's listing is a step by itself."""
    own = path.startswith("tmp/") and path.count("/") == 1
    return not own and not flags & os.O_DIRECTORY


def _try_lock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
