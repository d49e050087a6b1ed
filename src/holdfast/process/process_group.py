"""Child processes as groups: started without our Ctrl-C, and killed with all they started.

A child process never outlives its worker, even if it hangs in C code. A thread in the child
could watch for the worker's end, but not while the interpreter is stuck. So the child forks a
guard process before anything else. The guard only waits until the pipe from the worker breaks,
and then kills the child's whole process group, with everything the child started. The guard is
a member of that group. So the kernel cannot give the group's number to another process while
the group may still be killed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import poll

_PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = 112  # an exit code of our children, that no shell and no signal uses


@contextmanager
def block_sigint() -> Iterator[None]:
    """Start child processes with SIGINT blocked, until they have a session of their own.

    A child starts in the process group of our terminal, but only this process may handle
    Ctrl-C. The child unblocks the signal in `detach_from_terminal`.
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


# -- in the child


def detach_from_terminal() -> None:
    """Start a new session, so that the worker alone handles Ctrl-C and can kill our group."""
    os.setsid()
    # The worker blocked SIGINT while it started this process. Ignoring the signal discards
    # one that is pending. After that, SIGINT gets its usual handler again.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start_guard(parent_pid: int, parent_pipe: int) -> None:
    """Kill this process group as soon as the parent ends.

    `parent_pipe` is the reading end of a pipe that only the parent writes to.
    """
    # Linux sends this signal when the thread that started this process ends. That works even
    # if a fork of the worker keeps the pipe open. It does not reach what this process
    # started, so the guard is needed too.
    if sys.platform == "linux":
        import ctypes  # here, because only a child needs it

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the line above
        kill_own_group()
    if os.fork() == 0:
        _run_guard(parent_pipe)


def kill_own_group() -> None:
    """Kill this process, its guard and everything it started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _run_guard(parent_pipe: int) -> None:
    try:
        _close_all_but(parent_pipe)
        end_poll = poll()
        end_poll.register(parent_pipe, 0)  # only its end; what is in it is for the child
        end_poll.poll()
    finally:
        kill_own_group()
        os._exit(1)


def _close_all_but(kept: int) -> None:
    """Close inherited pipes, because their readers would otherwise never see an end."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(devnull, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
