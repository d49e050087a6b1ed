"""Errors of one task: a stable code for programs, and a line of text for operators.

No text holds a URL's path, query or credentials, nor any text of the server, because each
of them may be, or repeat, a signature.
"""

import errno
from http import HTTPStatus

from holdfast.errors import HoldfastError


class TaskError(HoldfastError):
    """The failure of a task, or of one attempt at it.

    `retryable`: the cause may pass. `after_seconds` is how long the server asked to wait.
    `start_over`: the received bytes cannot be trusted, so the next attempt begins at zero.
    `keep`: the task failed, but the received bytes are still useful for a later attempt.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        after_seconds: float = 0.0,
        start_over: bool = False,
        keep: bool | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = retryable
        self.after_seconds = after_seconds
        self.start_over = start_over
        self.keep = retryable if keep is None else keep


# Errors of the filesystem, with our code and text. All others are a StorageError.
_BY_ERRNO = {
    errno.ENOSPC: ("DiskFull", "the disk has no space left for it"),
    errno.EDQUOT: ("DiskFull", "the quota is used up"),
    errno.EFBIG: ("FileTooBig", "files as large as this are not allowed here"),
    errno.EROFS: ("ReadOnly", "the target cannot be written to"),
    errno.EACCES: ("Denied", "this user is not allowed to write there"),
    errno.EPERM: ("Denied", "this user is not allowed to write there"),
    errno.ELOOP: ("UnsafePath", "a folder of its path is a link, or not a folder"),
    errno.ENOTDIR: ("UnsafePath", "a folder of its path is a link, or not a folder"),
    errno.EISDIR: ("NameTaken", "a folder has that name"),
    errno.EXDEV: ("OtherFilesystem", "its folder is on another file system than the target"),
    errno.ENAMETOOLONG: ("InvalidName", "the name is too long for this file system"),
}
_TRANSIENT_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


def from_os_error(error: OSError, key: str) -> TaskError:
    """Return the error of a failure to write `key`."""
    known = _BY_ERRNO.get(error.errno or 0)
    if known is not None:
        return TaskError(known[0], f"{key}: {known[1]}")
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    is_transient = error.errno in _TRANSIENT_ERRNOS
    return TaskError("StorageError", f"{key}: {name}", retryable=is_transient)


def from_http_status(host: str, status: int, after_seconds: float = 0.0) -> TaskError:
    """Return the error of a response that is not the file."""
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    is_transient = status >= 500 or status in (408, 429)
    return TaskError(
        f"Http{status}",
        f"{host}: {phrase}",
        retryable=is_transient,
        after_seconds=after_seconds,
    )


# libcurl's number, with our code, its meaning, and whether it may pass.
_BY_CURL_CODE = {
    1: ("BadAnswer", "the response is not HTTP", True),
    3: ("BadUrl", "the address cannot be used", False),
    6: ("NameNotResolved", "the name was not found", True),
    7: ("ConnectFailed", "the server does not accept the connection", True),
    8: ("BadAnswer", "the response is not HTTP", True),
    18: ("Truncated", "the connection ended before the file did", True),
    28: ("TimedOut", "no connection, or too few bytes for too long", True),
    35: ("TlsFailed", "the secure connection could not be made", True),
    52: ("ConnectionLost", "the connection ended without a response", True),
    55: ("ConnectionLost", "the connection broke", True),
    56: ("ConnectionLost", "the connection broke", True),
    58: ("TlsRefused", "the server requires a client certificate", False),
    59: ("TlsRefused", "the server offers no cipher that is accepted here", False),
    60: ("TlsRefused", "the server's certificate cannot be trusted", False),
    77: ("TlsRefused", "the file of trusted certificates cannot be read", False),
    91: ("TlsRefused", "the server's certificate was withdrawn", False),
    100: ("BadAnswer", "the head of the response is too large", False),
}


def from_curl_code(host: str, number: int) -> TaskError:
    """Return the error of a failed transfer. It does not repeat libcurl's own text."""
    code, text, is_transient = _BY_CURL_CODE.get(
        number, ("TransferFailed", f"the transfer failed (curl {number})", True)
    )
    return TaskError(code, f"{host}: {text}", retryable=is_transient)
