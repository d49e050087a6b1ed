"""A child process never outlives its worker, not even one that hangs in C code.

A thread in the child could watch for the worker's end, but not while the interpreter is
stuck. So the child forks a guard before anything else: a process that does nothing but
wait for the pipe from the worker to break, and then kills the child's whole process group,
whatever hangs in it and whatever it started. Being a member, the guard also keeps the
group's number from being given to anybody else while it may still be killed.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from select import poll

_PR_SET_PDEATHSIG = 1


def leave_terminal() -> None:
    """A session of our own: Ctrl-C is the worker's to handle, and our group can be killed."""
    os.setsid()
    # The worker blocked it for our start. To ignore a signal drops one that waits; then
    # it may have its usual meaning again.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end_with(parent_pid: int, parent_sentinel: int) -> int:
    """From here on, the end of the parent is the end of this process group.

    The process id of the guard.
    """
    _ask_the_kernel(signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before we asked
        end_group()
    if (guard := os.fork()) == 0:
        _guard(parent_sentinel)
    return guard


def end_in_peace(guard: int) -> None:
    """As `end_group`, for a process that is done: nobody else has to bury its guard."""
    # Without the guard, the kernel must not end us either before we have ended the group:
    # the parent may be dying right now, and what we started would be left to nobody.
    _ask_the_kernel(0)
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)
    end_group()


def end_group() -> None:
    """Kill this process, its guard and all it started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _ask_the_kernel(end: int) -> None:
    # Linux ends us with the thread that started us. That also helps where a fork of the
    # worker keeps the pipe open, but does not reach what we started; hence the guard.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, end)


def _guard(parent_sentinel: int) -> None:
    try:
        _close_all_but(parent_sentinel)
        broken = poll()
        broken.register(parent_sentinel)
        broken.poll()
    finally:
        end_group()
        os._exit(1)


def _close_all_but(kept: int) -> None:
    """Nobody shall wait for a pipe to end that only the guard holds open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
