"""How a command ends: the exit codes, and one clear line for each error."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from holdfast.core.errors import (
    ConfigError,
    HandlerNotFound,
    HoldfastError,
    InvalidName,
    MalformedMessage,
    MessageTooLarge,
    QueueUnavailable,
    Unsupported,
)
from holdfast.jobs.errors import InvalidJob, StoreUnavailable

DEBUG = "HOLDFAST_DEBUG"


class ExitCode(IntEnum):
    """Documented in docs/reference/cli.md; scripts rely on them."""

    OK = 0
    NO = 1  # not there, a check failed, the books do not balance
    USAGE = 2  # it cannot be done as written: option, name, setting, handler, kind of queue
    UNAVAILABLE = 3  # the queue cannot be reached, read or written
    REFUSED = 4  # the input is no message: not JSON, not UTF-8, too large
    BUG = 70
    INTERRUPTED = 130


class InputRefused(HoldfastError):
    """What was given to push is no message. Says where, and what was pushed before."""


class NotFound(HoldfastError):
    """What was asked about does not exist."""


class UsageError(HoldfastError):
    """The command cannot be run as it was written."""


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (QueueUnavailable, ExitCode.UNAVAILABLE),
    (StoreUnavailable, ExitCode.UNAVAILABLE),
    (UsageError, ExitCode.USAGE),
    (ConfigError, ExitCode.USAGE),
    (Unsupported, ExitCode.USAGE),
    (InvalidName, ExitCode.USAGE),
    (HandlerNotFound, ExitCode.USAGE),
    (InputRefused, ExitCode.REFUSED),
    (InvalidJob, ExitCode.REFUSED),
    (MalformedMessage, ExitCode.REFUSED),
    (MessageTooLarge, ExitCode.REFUSED),
    (HoldfastError, ExitCode.NO),
    (OSError, ExitCode.UNAVAILABLE),
)


def code_of(error: BaseException) -> ExitCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.BUG)


def line_of(error: BaseException) -> str:
    """One line: what is wrong, and the way out."""
    if isinstance(error, HoldfastError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error} (`holdfast doctor QUEUE` may know more)"
    return (
        f"this is a bug in Holdfast: {type(error).__name__}: {' '.join(str(error).split())} "
        f"(run it with {DEBUG}=1 for the traceback, and please report it)"
    )


@contextmanager
def report_errors() -> Iterator[None]:
    """Keep log lines off stderr where no log is set up. A store logs that a query failed and
    raises it, too; the command shows what was raised.
    """
    log, nowhere = logging.getLogger("holdfast"), logging.NullHandler()
    log.addHandler(nowhere)
    try:
        yield
    finally:
        log.removeHandler(nowhere)


def debugging() -> bool:
    return os.environ.get(DEBUG, "") not in ("", "0")
