"""What can go wrong with one task: a stable word for programs, a line for people.

No text holds a URL's path, query or credentials, nor anything the other side said: any of
them may be, or echo, a signature.
"""

import errno
from http import HTTPStatus

from holdfast.core.errors import HoldfastError


class TaskError(HoldfastError):
    """A task, or one attempt at it, failed.

    `again`: it may pass; `after_seconds` is how long the server asked us to stay away.
    `afresh`: what was received so far is not to be trusted, begin at zero.
    `keep`: it failed, and what was received is still good for whoever comes next.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        again: bool = False,
        after_seconds: float = 0.0,
        afresh: bool = False,
        keep: bool | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.again = again
        self.after_seconds = after_seconds
        self.afresh = afresh
        self.keep = again if keep is None else keep


# What the file system says → what we say. Anything else is a StorageError.
_OF_STORAGE = {
    errno.ENOSPC: ("DiskFull", "there is no space left for it"),
    errno.EDQUOT: ("DiskFull", "the quota is used up"),
    errno.EFBIG: ("FileTooBig", "files as large as this are not allowed here"),
    errno.EROFS: ("ReadOnly", "the target cannot be written to"),
    errno.EACCES: ("Denied", "we are not allowed to write there"),
    errno.EPERM: ("Denied", "we are not allowed to write there"),
    errno.ELOOP: ("UnsafePath", "a folder on the way is a link, or no folder"),
    errno.ENOTDIR: ("UnsafePath", "a folder on the way is a link, or no folder"),
    errno.EISDIR: ("NameTaken", "a folder has that name"),
    errno.EXDEV: ("OtherFilesystem", "its folder is on another file system than the target"),
    errno.ENAMETOOLONG: ("InvalidName", "the name is too long for this file system"),
}
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


def of_storage(error: OSError, key: str) -> TaskError:
    """What became of writing `key`."""
    known = _OF_STORAGE.get(error.errno or 0)
    if known is not None:
        return TaskError(known[0], f"{key}: {known[1]}")
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return TaskError("StorageError", f"{key}: {name}", again=error.errno in _PASSING)


def of_status(host: str, status: int, after_seconds: float = 0.0) -> TaskError:
    """The server answered, with something else than the file."""
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    passing = status >= 500 or status in (408, 429)
    return TaskError(
        f"Http{status}", f"{host}: {phrase}", again=passing, after_seconds=after_seconds
    )


# libcurl's number → our word, what it means, whether it may pass.
_OF_TRANSFER = {
    1: ("BadAnswer", "the answer is not HTTP", True),
    3: ("BadUrl", "the address cannot be used", False),
    6: ("NameNotResolved", "the name was not found", True),
    7: ("ConnectFailed", "nobody takes the connection", True),
    8: ("BadAnswer", "the answer is not HTTP", True),
    18: ("Truncated", "the connection ended before the file did", True),
    28: ("TimedOut", "no connection, or too few bytes for too long", True),
    35: ("TlsFailed", "no secure connection came about", True),
    52: ("ConnectionLost", "the connection ended without an answer", True),
    55: ("ConnectionLost", "the connection broke", True),
    56: ("ConnectionLost", "the connection broke", True),
    58: ("TlsRefused", "the server wants a certificate of ours", False),
    59: ("TlsRefused", "the server offers no cipher we take", False),
    60: ("TlsRefused", "the server's certificate cannot be trusted", False),
    77: ("TlsRefused", "the file of trusted certificates cannot be read", False),
    91: ("TlsRefused", "the server's certificate was withdrawn", False),
    100: ("BadAnswer", "the head of the answer is too large", False),
}


def of_transfer(host: str, number: int) -> TaskError:
    """libcurl gave up. Its own text stays with it."""
    code, text, passing = _OF_TRANSFER.get(
        number, ("TransferFailed", f"the transfer failed (curl {number})", True)
    )
    return TaskError(code, f"{host}: {text}", again=passing)
