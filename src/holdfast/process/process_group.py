"""Child processes as groups: started without our Ctrl-C, and killed with all they started."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

OUT_OF_MEMORY = 112  # an exit code of our children, that no shell and no signal uses


@contextmanager
def block_sigint() -> Iterator[None]:
    """Start child processes with SIGINT blocked, until they have a session of their own.

    A child starts in the process group of our terminal, but only this process may handle
    Ctrl-C. The child unblocks the signal in `orphan_guard.detach_from_terminal`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill_group(leader: int) -> None:
    """Kill all members of the group at once. Does nothing if the group does not exist."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def is_group_gone(leader: int) -> bool:
    """Return whether no living member is left. Call it after killing the group and waiting
    for the leader itself.

    Where /proc does not show the members, dead ones that no process reaps count as living.
    So do not wait forever for this to become true.
    """
    _reap_orphans(leader)
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return _are_members_dead(leader)


def _are_members_dead(leader: int) -> bool:
    """Return whether the members are seen, and are all dead.

    Process 1 of some containers takes seconds to reap an orphan, or never does. A killed
    group gets no new members, so none can be missed.
    """
    seen = False
    for pid in filter(str.isdecimal, _list_processes()):
        with suppress(OSError):  # it was reaped meanwhile
            with open(f"/proc/{pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split(maxsplit=18)
            state, parent, group, threads = fields[0], *map(int, (*fields[1:3], fields[17]))
            if group == leader:
                # While another thread of it is ending, a process may still act. A child of
                # ours has to be reaped, by the next call.
                if state != b"Z" or threads > 1 or parent == os.getpid():
                    return False
                seen = True
    return seen


def _list_processes() -> list[str]:
    try:
        return os.listdir("/proc")
    except OSError:  # /proc does not exist
        return []


def _reap_orphans(leader: int) -> None:
    """Reap orphans of the group. They are our children if we are process 1 of a container."""
    with suppress(ChildProcessError):
        while os.waitpid(-leader, os.WNOHANG) != (0, 0):
            pass


def describe_exit(exit_code: int) -> str:
    """Return how a process ended: out of memory, the name of a signal, or its exit code."""
    if exit_code == OUT_OF_MEMORY:
        return "out of memory"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
