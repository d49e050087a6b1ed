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
from contextlib import suppress
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


def start_guard(parent_pid: int, parent_sentinel: int) -> int:
    """Kill this process group as soon as the parent ends. Return the guard's process id."""
    _set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the line above
        kill_own_group()
    if (guard := os.fork()) == 0:
        _run_guard(parent_sentinel)
    return guard


def stop_guard_and_kill_group(guard: int) -> None:
    """End the guard and wait for it, then kill this process group.

    A process that is done calls this, so that no other process has to reap its guard.
    """
    # Without the guard, the kernel must not kill this process before it has killed its
    # group. The parent may be dying right now, and then nothing else would kill what this
    # process started.
    _set_parent_death_signal(0)
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)
    kill_own_group()


def kill_own_group() -> None:
    """Kill this process, its guard and everything it started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _set_parent_death_signal(signal_number: int) -> None:
    # Linux sends this signal when the thread that started this process ends. That works even
    # if a fork of the worker keeps the pipe open. It does not reach what this process
    # started, so the guard is needed too.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)


def _run_guard(parent_sentinel: int) -> None:
    try:
        _close_all_but(parent_sentinel)
        sentinel_poll = poll()
        sentinel_poll.register(parent_sentinel)
        sentinel_poll.poll()
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
