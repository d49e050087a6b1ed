"""Processes we start: born deaf to our Ctrl-C, and ended with all they started."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def born_deaf() -> Iterator[None]:
    """Who is started in here is not reached by Ctrl-C until it leaves our terminal.

    A process starts in our terminal's process group. Ctrl-C is ours to handle: it is born
    with that blocked, until it has a session of its own (`lifeline.leave_terminal`).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill_group(leader: int) -> None:
    """Kill all members, at once. Nothing happens when there is no such group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def group_is_gone(leader: int) -> bool:
    """Whether no member is left. Call it when the leader itself was waited for.

    Where nobody buries orphans, the dead stay in their group: do not wait for ever.
    """
    _bury(leader)
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return False


def _bury(leader: int) -> None:
    """Where we are process 1, as in a container, orphans become our children."""
    with suppress(ChildProcessError):
        while os.waitpid(-leader, os.WNOHANG) != (0, 0):
            pass


def death_of(exit_code: int) -> str:
    """How a process ended, in words: a signal's name or the code it exited with."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
