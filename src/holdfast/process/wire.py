"""The frames that all child processes have in common, and how they describe an error.

    parent ─▶ child   the length of the pickled Program, then the Program in parts;
                      then the frames of the program. The end of the pipe ends the child.
    child  ─▶ parent  READY or BROKEN after the start, PULSE regularly;
                      besides these, the frames of the program

Only the user's code is pickled, because it is code. The parent checks a child's frames as
strictly as those of an untrusted process. This module imports little, because each child
process loads it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.process.frames import BrokenFrame

READY, BROKEN, PULSE = b"r", b"b", b"p"

MAX_TEXT = 500  # characters of an error message
MAX_CODE = 100
_MAX_SCANNED = 10_000

_IN_URL = r"[^\s'\"<>]*"  # rather too much is hidden than too little
_USER = re.compile(rf"://{_IN_URL}@")
_QUERY = re.compile(rf"(://[^\s'\"<>?#]*)[?#]{_IN_URL}")


class Program(NamedTuple):
    """What a child process runs: `prepare(code, link, **options)` of a module.

    `prepare` returns the function that serves the parent, and the child is READY then.
    """

    module: str
    code: bytes  # the user's code, pickled
    options: Mapping[str, Any]
    imports_main: bool = False  # the user's code may be in the parent's main module


def pack_broken(error: BaseException) -> bytes:
    """Make a BROKEN frame: the child cannot load the user's code."""
    return BROKEN + json.dumps(describe_error(error)).encode()


def unpack_broken(frame: bytes) -> tuple[str, str]:
    """Return the code and the message of the error. Raises BrokenFrame.

    The code may be shown anywhere; show the message only to the operator.
    """
    return unpack_error(parse_json(frame[1:]))


def unpack_error(error: Any) -> tuple[str, str]:
    """Return the code and the message of an error. Raises BrokenFrame."""
    match error:
        case {"code": str(code), "message": str(message)}:
            return _check_text(code, MAX_CODE), _check_text(message, MAX_TEXT)
    raise BrokenFrame("its error is invalid")


def _check_text(text: str, max_length: int) -> str:
    # Every store refuses a lone surrogate.
    if len(text) > max_length or text != _replace_surrogates(text):
        raise BrokenFrame("its text is too long, or not Unicode")
    return text


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def parse_json(text: bytes) -> Any:
    """Parse JSON. Raises BrokenFrame, also for numbers that JSON does not have."""
    try:
        return _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        # The text of `json` would quote the frame.
        raise BrokenFrame("it is not JSON") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def describe_error(error: BaseException) -> dict[str, str]:
    """Return the error's type and its text without secrets, as they may leave the process."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # even the error's own __str__ may raise
        text = ""
    return {"code": hide_secrets(name, MAX_CODE), "message": hide_secrets(text, MAX_TEXT)}


def hide_secrets(text: Any, max_length: int) -> str:
    """Hide credentials in URLs, then cut the text.

    In the opposite order, a URL that was cut would not be recognized.
    """
    valid = _replace_surrogates(_shorten(str(text)))
    hidden = _QUERY.sub(r"\1?…", _USER.sub("://…@", valid))
    return hidden if len(hidden) <= max_length else hidden[: max_length - 1] + "…"


def _shorten(text: str) -> str:
    """Cut a long text between words, so that no URL is cut. An error may quote a whole page."""
    if len(text) <= _MAX_SCANNED:
        return text
    return " ".join(text[:_MAX_SCANNED].split()[:-1]) + " …"
