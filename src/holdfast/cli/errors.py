"""The exit codes of commands, and one clear line for each error."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from holdfast.errors import (
    ConfigError,
    HandlerNotFound,
    HoldfastError,
    InvalidInput,
    InvalidName,
    MalformedMessage,
    MessageTooLarge,
    QueueUnavailable,
    StoreUnavailable,
    Unsupported,
)

DEBUG_VARIABLE = "HOLDFAST_DEBUG"


class ExitCode(IntEnum):
    """The exit codes, documented in docs/reference/cli.md. Scripts rely on them."""

    OK = 0
    FAILED = 1  # not found, a check failed, or the demo's totals do not match
    USAGE = 2  # wrong option, name, setting, handler or kind of queue
    UNAVAILABLE = 3  # the queue cannot be reached, read or written
    REFUSED = 4  # the input is not a message: not JSON, not UTF-8, too large
    BUG = 70
    INTERRUPTED = 130


class InputRefused(HoldfastError):
    """Some input is not a message. The text says where, and what was pushed before it."""


class NotFound(HoldfastError):
    """The thing a command was asked for does not exist."""


class UsageError(HoldfastError):
    """A command cannot be run as it was written."""


_CODES: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
    ((QueueUnavailable, StoreUnavailable), ExitCode.UNAVAILABLE),
    ((UsageError, ConfigError, Unsupported, InvalidName, HandlerNotFound), ExitCode.USAGE),
    ((InputRefused, InvalidInput, MalformedMessage, MessageTooLarge), ExitCode.REFUSED),
    ((HoldfastError,), ExitCode.FAILED),
    ((OSError,), ExitCode.UNAVAILABLE),
)


def exit_code_from_error(error: BaseException) -> ExitCode:
    """Return the exit code of an error."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), ExitCode.BUG)


def format_error(error: BaseException) -> str:
    """Return one line that says what failed and what to do."""
    if isinstance(error, HoldfastError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error} (try `holdfast doctor QUEUE`)"
    # The text of a foreign error may quote what it could not read, such as a message's body.
    return (
        f"this is a bug in Holdfast: {type(error).__name__}{_format_place(error)} "
        f"(run it with {DEBUG_VARIABLE}=1 for the text and the traceback, and please report it)"
    )


def _format_place(error: BaseException) -> str:
    """Return the file and line where the error was raised, if known."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" in {os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno}"


@contextmanager
def silence_log() -> Iterator[None]:
    """Keep log lines off stderr if no logging is set up.

    A store logs a failed query and also raises it, and the command shows the raised error.
    """
    import logging

    log, handler = logging.getLogger("holdfast"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def is_debugging() -> bool:
    """Return whether errors are raised with their traceback."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
