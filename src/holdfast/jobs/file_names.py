"""Names of exported files: what may stand below a target, and nothing that leads out of it."""

import re
import unicodedata
from collections.abc import Container
from urllib.parse import unquote, urlsplit

from holdfast.jobs.errors import InvalidJob

OWN_FOLDER = ".holdfast"  # half-done files, hidden below the target

_MAX_PART = 255  # bytes: what file systems take
_MAX_KEY = 1024  # bytes: what S3 takes
# The last two ranges turn the order of letters on a screen: "gpj.exe" shows as "exe.jpg".
_HARMFUL = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def safe_key(text: str) -> str:
    """`text` as a name below a target, composed (NFC). Raises InvalidJob, saying why not."""
    key = unicodedata.normalize("NFC", text)
    problem = _problem(key)
    if problem:
        raise InvalidJob(f"the name {key[:80]!a} cannot be used: {problem}")
    return key


def _problem(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode text"
    if not key:
        return "it is empty"
    if size > _MAX_KEY:
        return f"it has {size} bytes, {_MAX_KEY} are allowed"
    if _HARMFUL.search(key):
        return "it has a backslash, a control character or one that turns the writing"
    return next(filter(None, map(_problem_of_part, key.split("/"))), None)


def _problem_of_part(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "it begins or ends with '/', or has '//', '.' or '..' in it"
    if part[-1] in ". " or part[0] == " ":
        return "a part of it begins with a space, or ends with a dot or a space"
    if len(part.encode()) > _MAX_PART:
        return f"a part of it has more than {_MAX_PART} bytes"
    if _as_disks_see(part) == OWN_FOLDER:
        return f"{OWN_FOLDER} is kept for half-done files"
    return None


def _as_disks_see(part: str) -> str:
    """Some disks ignore case, some letters without width: both would find our folder."""
    if part.isascii():
        return part.lower()
    visible = (letter for letter in part if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", "".join(visible)).casefold()


def key_from_url(url: str, taken: Container[str]) -> str:
    """A name after the last part of the URL's path; `file` when that cannot be one.

    Numbered when it is taken: `a.pdf`, `a-2.pdf`, `a-3.pdf`. The query is not looked at:
    it holds signatures.
    """
    name = _last_part(url)
    if name not in taken:
        return name
    least, most = 1, 2  # the first is taken; double until one is free, then go between
    while _numbered(name, most) in taken:
        least, most = most, most * 2
    while most - least > 1:
        middle = (least + most) // 2
        if _numbered(name, middle) in taken:
            least = middle
        else:
            most = middle
    return _numbered(name, most)


def _last_part(url: str) -> str:
    try:
        name = unquote(urlsplit(url).path.rpartition("/")[2], errors="strict")
        return safe_key(name) if "/" not in name else "file"
    except (ValueError, InvalidJob):
        return "file"


def _numbered(name: str, number: int) -> str:
    stem, dot, ending = name.rpartition(".")
    if not stem or len(ending) > 16:  # ".profile", "README", "v1.some long text"
        stem, dot, ending = name, "", ""
    tail = f"-{number}{dot}{ending}"
    room = _MAX_PART - len(tail.encode())
    return stem.encode()[:room].decode(errors="ignore") + tail
