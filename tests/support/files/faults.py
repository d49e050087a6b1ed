"""File systems that refuse calls: full, read-only or forbidden."""

import errno
import os
from collections.abc import Callable
from typing import Any

from support.files.crash import changes
from support.files.watched import WatchedFs

Concerns = Callable[[str, tuple[Any, ...]], bool]

TAKES_SPACE = frozenset({"write", "rename", "link", "symlink", "mkdir"})


def takes_space(name: str, args: tuple[Any, ...]) -> bool:
    return name in TAKES_SPACE or (name == "open" and bool(args[1] & os.O_CREAT))


CONCERNS: dict[int, Concerns] = {
    errno.ENOSPC: takes_space,
    errno.EDQUOT: takes_space,
    errno.EROFS: changes,
    errno.EACCES: changes,
    errno.EIO: lambda name, args: name != "close",
}


class RefusingFs(WatchedFs):
    """While `refusing`, refuses call number `at`, or all that `error` concerns."""

    def __init__(
        self,
        server_time: Callable[[], float],
        error: int,
        *,
        at: int | None = None,
        concerns: Concerns | None = None,
    ) -> None:
        super().__init__(server_time)
        self._error, self._at = error, at
        self._concerns = concerns or CONCERNS[error]
        self.refusing = False
        self.count = 0

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.refusing and self._concerns(name, args):
            self.count += 1
            if self._at in (None, self.count):
                raise OSError(self._error, os.strerror(self._error))
        return real(*args, **kwargs)
