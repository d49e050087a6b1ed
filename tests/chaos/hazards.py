"""What a round of chaos on a local queue adds to kills and freezes.

none             the machine as it is
clock steps      the wall clock and the file server's clock jump, each by itself
time namespaces  processes of one boot whose monotonic clocks are days apart
overlay          a queue that was begun in the lower layer, with dedupe
disk errors      EIO now and then, before a call or after it was carried out
"""

import ctypes
import errno
import mmap
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from holdfast.lease.clock import SYSTEM_CLOCK, SystemClock
from holdfast.queues.files import FsOps
from support.files.watched import WatchedFs
from support.sqlite.disk import IOERR_WRITE, fail_calls, find_reason_against_watching

CLONE_NEWTIME, CLONE_NEWNS = 0x80, 0x20000
MAX_STEP_SECONDS = 7200.0
MAX_NAMESPACE_OFFSET_SECONDS = 500_000
ERROR_SHARE = 1 / 400  # of all calls


class Hazard:
    """The faults of one round; forked processes inherit them."""

    name = "none"
    dedupe = False
    outdates_workers = False  # those that started earlier must not see the end of the round

    def prepare(self, root: Path, push_first: Callable[[Path], None]) -> Path:
        """Prepare the queue's root in the round's own process, and push the first tasks there.

        Returns the queue's root. Raises HazardUnavailable.
        """
        push_first(root / "queue")
        return root / "queue"

    def join(self, random: Random) -> None:
        """Put a newly forked process under this hazard."""

    def strike(self, random: Random) -> None:
        """Do harm once. The round calls it repeatedly while it kills processes."""

    def calm(self) -> None:
        """End the harm, so that the round can finish."""

    def finish(self) -> None:
        """Make every task due. No producer runs any more."""

    def options(self) -> dict[str, Any]:
        """Return the options with which every queue of the round is opened."""
        return {}

    def shared_time(self, monotonic: float) -> float:
        """Convert this process's monotonic time to one that all processes share."""
        return monotonic


class _SharedNumbers:
    """A few floats that forked processes see change."""

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, 8 * count)

    def __getitem__(self, index: int) -> float:
        value: float = struct.unpack_from("d", self._memory, 8 * index)[0]
        return value

    def __setitem__(self, index: int, value: float) -> None:
        struct.pack_into("d", self._memory, 8 * index, value)


class ClockSteps(Hazard):
    """The wall clock and the file server's clock jump."""

    name = "clock steps"

    def __init__(self) -> None:
        self._steps = _SharedNumbers(2)  # of the wall clock, of the file server's clock

    def strike(self, random: Random) -> None:
        self._steps[random.randrange(2)] = random.uniform(-MAX_STEP_SECONDS, MAX_STEP_SECONDS)

    # A worker measures the difference of both clocks when it starts. One that started before
    # the last step would write due times that are hours ahead.
    outdates_workers = True

    def finish(self) -> None:
        """Move both clocks past every due time that a fast clock wrote."""
        self._steps[0] = self._steps[1] = 3 * MAX_STEP_SECONDS

    def options(self) -> dict[str, Any]:
        steps = self._steps

        class SteppedClock(SystemClock):
            def time(self) -> float:
                return super().time() + steps[0]

        server = FsOps(server_time=lambda: SYSTEM_CLOCK.time() + steps[1])
        return {"clock": SteppedClock(), "fs": server}


class TimeNamespaces(Hazard):
    """Processes whose monotonic clocks are days apart."""

    name = "time namespaces"

    def __init__(self) -> None:
        self._offset_seconds = 0

    def prepare(self, root: Path, push_first: Callable[[Path], None]) -> Path:
        pid = os.fork()
        if pid == 0:
            os._exit(_get_refusal(lambda: _enter_time_namespace(1)))
        if refused := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise HazardUnavailable(f"time namespaces: {os.strerror(refused)}")
        return super().prepare(root, push_first)

    def join(self, random: Random) -> None:
        if random.random() < 0.7:
            self._offset_seconds = random.randrange(1, MAX_NAMESPACE_OFFSET_SECONDS)
            _enter_time_namespace(self._offset_seconds)

    def shared_time(self, monotonic: float) -> float:
        return monotonic - self._offset_seconds


class Overlay(Hazard):
    """A queue that was begun in the lower layer of an overlay."""

    name = "overlay"
    dedupe = True

    def prepare(self, root: Path, push_first: Callable[[Path], None]) -> Path:
        """Mount the overlay in the round's own mount namespace, so that it ends
        with the round.
        """
        lower, upper, work, merged = (root / n for n in ("lower", "upper", "work", "queue"))
        for folder in (lower, upper, work, merged):
            folder.mkdir()
        push_first(lower)
        if refused := _get_refusal(lambda: _call_libc("unshare", CLONE_NEWNS)):
            raise HazardUnavailable(f"mount namespaces: {os.strerror(refused)}")
        layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
        _run("mount", "--make-rprivate", "/")
        _run("mount", "-t", "overlay", "overlay", "-o", layers, str(merged))
        return merged


class DiskErrors(Hazard):
    """A disk that fails now and then."""

    name = "disk errors"

    def __init__(self) -> None:
        self._share = _SharedNumbers(1)

    def strike(self, random: Random) -> None:
        self._share[0] = ERROR_SHARE

    def calm(self) -> None:
        self._share[0] = 0.0

    def options(self) -> dict[str, Any]:
        return {"fs": _FailingDisk(self._share, Random(os.getpid()))}


class _FailingDisk(WatchedFs):
    """A file system that fails a share of all calls with EIO, half of them after making the
    call.
    """

    def __init__(self, share: _SharedNumbers, random: Random) -> None:
        super().__init__()
        self._failing, self._random = share, random

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "close" or self._random.random() >= self._failing[0]:
            return real(*args, **kwargs)
        # the descriptor of an opened file would leak
        if name != "open" and self._random.random() < 0.5:
            real(*args, **kwargs)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


class SQLiteDiskErrors(DiskErrors):
    """A disk that fails now and then, below SQLite."""

    def prepare(self, root: Path, push_first: Callable[[Path], None]) -> Path:
        if reason := find_reason_against_watching():
            raise HazardUnavailable(f"disk errors: {reason}")
        return super().prepare(root, push_first)

    def options(self) -> dict[str, Any]:
        random = Random(os.getpid())
        fail_calls(lambda op: IOERR_WRITE if random.random() < self._share[0] else 0)
        return {}


class HazardUnavailable(Exception):
    """The kernel or the user's permissions do not allow this hazard."""


def _enter_time_namespace(offset_seconds: int) -> None:
    """Move this process, which has one thread, to clocks that are ahead by the offset."""
    _call_libc("unshare", CLONE_NEWTIME)
    offsets = f"monotonic {offset_seconds} 0\nboottime {offset_seconds} 0\n"
    Path("/proc/self/timens_offsets").write_text(offsets)
    fd = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
    try:
        _call_libc("setns", fd, CLONE_NEWTIME)
    finally:
        os.close(fd)


def _call_libc(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _run(*command: str) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise HazardUnavailable(f"{' '.join(command[:3])}: {completed.stderr.strip()}")


def _get_refusal(action: Callable[[], None]) -> int:
    """Return the errno with which `action` was refused, or 0."""
    try:
        action()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


HAZARDS: tuple[type[Hazard], ...] = (Hazard, ClockSteps, TimeNamespaces, Overlay, DiskErrors)
SQLITE_HAZARDS: tuple[type[Hazard], ...] = (*HAZARDS[:-1], SQLiteDiskErrors)
