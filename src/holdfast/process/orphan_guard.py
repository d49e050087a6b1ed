"""The orphan guard: a child process never outlives its worker, even if it hangs in C code.

A thread in the child could watch for the worker's end, but not while the interpreter is
stuck. So the child forks a guard process before anything else. The guard only waits until the
pipe from the worker breaks, and then kills the child's whole process group, with everything
the child started. The guard is a member of that group. So the kernel cannot give the group's
number to another process while the group may still be killed.
"""

import ctypes
import os
import signal
import sys
from select import poll

_PR_SET_PDEATHSIG = 1


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
