"""End every process that a run of the tests or of the bench started, however the run ends.

A killed pytest cannot stop its servers, and a death signal from the kernel reaches neither
grandchildren nor children of a thread that outlives its use. So a run marks its environment,
which everything that it starts inherits, and starts a guard: a process that waits for the end
of the run and then kills what carries the mark.

A fork without exec keeps the environment of before the mark. It asks the kernel for a signal.
"""

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "TEST_RUN_MARK"
_POLL_SECONDS = 0.2
_SWEEP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1


def guard() -> None:
    """Mark what this process starts from now on, and end it when this process ends.

    Call it in the main thread, once.
    """
    mark = f"{os.getpid()}-{secrets.token_hex(8)}"
    # The guard itself carries no mark, because the guard of an outer run would kill it before
    # it has done its work.
    env = {name: value for name, value in os.environ.items() if name != MARK}
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C and the kill of a process group miss it
    )
    os.environ[MARK] = mark
    os.register_at_fork(after_in_child=_end_with_parent)


def find_marked(mark: str) -> Iterator[int]:
    """Yield the ids of the processes that carry this mark."""
    text = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile or belong to another user; a dead one shows nothing.
        with suppress(OSError):
            if text in (entry / "environ").read_bytes():
                yield int(entry.name)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _sweep(mark: str) -> None:
    """Kill until none is left, because a process may start another before it is killed."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while (left := list(find_marked(mark))) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _main(run: int, mark: str) -> None:
    while os.getppid() == run:
        time.sleep(_POLL_SECONDS)
    _sweep(mark)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
