"""Tracebacks and stacks as text, without the frames that lead to the user's code.

Only the outermost frames are left out, so a call of Holdfast by a handler is still shown.
"""

import os
import re
import traceback
from types import TracebackType

from holdfast.errors import AttemptFailed

_MAX_CHARACTERS = 16_000
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARY = os.path.dirname(os.__file__)
_OWN_PATHS = (
    *(f"{_PACKAGE}/{room}/" for room in ("worker", "process", "queue", "lease", "app")),
    f"{_PACKAGE}/django.py",
    f"{_LIBRARY}/asyncio/",
    f"{_LIBRARY}/threading.py",
    "<string>",  # the first line of a child process
)
_STACK_FRAME = re.compile(r'  File "(.*)", line ')  # as faulthandler writes it
_STACK_HEADING = "(most recent call first):"


def skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the user's code, or else its last frame."""
    while (
        trace is not None
        and trace.tb_next is not None
        and trace.tb_frame.f_code.co_filename.startswith(_OWN_PATHS)
    ):
        trace = trace.tb_next
    return trace


def format_traceback(error: BaseException) -> str | None:
    """Return the traceback as text, shortened, or None if there is none to show."""
    if isinstance(error, AttemptFailed):
        return None if error.detail is None else shorten(error.detail)
    try:
        return shorten("".join(traceback.format_exception(error)))
    except Exception:  # the exception has a broken __str__
        return None


def shorten(text: str) -> str:
    """Keep both ends of a long text. The start shows the origin and the end the error."""
    text = text.rstrip()
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"


def strip_own_frames(stacks: str) -> str:
    """Return the stacks that faulthandler wrote, without threads that run only Holdfast.

    They are returned unchanged if nothing else would be left.
    """
    threads = map(_strip_thread, stacks.rstrip().split("\n\n"))
    return "\n\n".join(filter(None, threads)) or stacks


def _strip_thread(text: str) -> str:
    lines = text.split("\n")
    while (
        lines and (frame := _STACK_FRAME.match(lines[-1])) and frame[1].startswith(_OWN_PATHS)
    ):
        lines.pop()
    if lines and lines[-1].endswith(_STACK_HEADING):
        lines.pop()
    return "\n".join(lines)
