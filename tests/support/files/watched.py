"""File system calls that a test watches, refuses or does not survive."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.queues.files import FsOps
from support.files.crash import die

CALLS = [name for name, value in vars(FsOps).items() if isinstance(value, staticmethod)]


class WatchedFs(FsOps):
    """Every call goes through `call`, which subclasses override."""

    def __init__(self, server_time: Callable[[], float] | None = None) -> None:
        super().__init__(server_time)
        for name in CALLS:
            setattr(self, name, partial(self.call, name, getattr(FsOps, name)))

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs)


class CountingFs(WatchedFs):
    def __init__(self, server_time: Callable[[], float]) -> None:
        super().__init__(server_time)
        self.counted: Counter[str] = Counter()

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.counted[name] += 1
        return real(*args, **kwargs)


Concerns = Callable[[str, tuple[Any, ...]], bool]
TAKES_SPACE = frozenset({"write", "rename", "link", "symlink", "mkdir"})
CHANGING = TAKES_SPACE | {"unlink", "rmdir", "utime", "fsync", "chmod", "fchmod"}


def takes_space(name: str, args: tuple[Any, ...]) -> bool:
    return name in TAKES_SPACE or (name == "open" and bool(args[1] & os.O_CREAT))


def changes(name: str, args: tuple[Any, ...]) -> bool:
    return name in CHANGING or takes_space(name, args)


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
                self.refuse()
        return real(*args, **kwargs)

    def refuse(self) -> None:
        raise OSError(self._error, os.strerror(self._error))


class CrashingFs(RefusingFs):
    """Kills its own process instead.

    It is enough to kill it before each call that changes the disk. A kill before any other
    call leaves the same disk as a kill before the next change.
    """

    def refuse(self) -> None:
        die()
