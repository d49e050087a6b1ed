"""Names of exported files. No name may lead out of the target."""

import re
import unicodedata
from collections.abc import Container
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.exports.errors import InvalidJob

OWN_FOLDER = ".holdfast"  # partial files, hidden below the target

_MAX_PART = 255  # bytes that file systems allow
_MAX_KEY = 1024  # bytes that S3 allows
# The last two ranges reverse the order of letters on a screen, so "gpj.exe" shows as "exe.jpg".
_HARMFUL = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def normalize_key(text: str) -> str:
    """Return `text` as a name below a target, in Unicode form NFC.

    Raises InvalidJob with the reason if the name cannot be used.
    """
    key = unicodedata.normalize("NFC", text)
    problem = _find_problem(key)
    if problem:
        raise InvalidJob(f"the name {key[:80]!a} cannot be used: {problem}")
    return key


def _find_problem(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode text"
    if not key:
        return "it is empty"
    if size > _MAX_KEY:
        return f"it has {size} bytes; at most {_MAX_KEY} are allowed"
    if _HARMFUL.search(key):
        return "it has a backslash, a control character or one that reverses the text direction"
    return next(filter(None, map(_find_part_problem, key.split("/"))), None)


def _find_part_problem(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "it begins or ends with '/', or has '//', '.' or '..' in it"
    if part[-1] in ". " or part[0] == " ":
        return "a part of it begins with a space, or ends with a dot or a space"
    if len(part.encode()) > _MAX_PART:
        return f"a part of it has more than {_MAX_PART} bytes"
    if _fold_like_file_systems(part) == OWN_FOLDER:
        return f"{OWN_FOLDER} is reserved for partial files"
    return None


def _fold_like_file_systems(part: str) -> str:
    """Return the part as file systems compare it.

    Some ignore case and some ignore characters without width. With either, another
    spelling would open our folder.
    """
    if part.isascii():
        return part.lower()
    visible = (letter for letter in part if unicodedata.category(letter) != "Cf")
    return unicodedata.normalize("NFKC", "".join(visible)).casefold()


def key_from_url(url: str, taken: Container[str]) -> str:
    """Return the last part of the URL's path as a name, or `file` if that is not a name.

    If the name is taken, it gets a number: `a.pdf`, `a-2.pdf`, `a-3.pdf`. The query is
    ignored, because it holds signatures.
    """
    name = _parse_last_part(url)
    if name not in taken:
        return name
    # Number 1 is taken. Double until a number is free, then search between the two.
    taken_number, free_number = 1, 2
    while _add_number(name, free_number) in taken:
        taken_number, free_number = free_number, free_number * 2
    while free_number - taken_number > 1:
        middle = (taken_number + free_number) // 2
        if _add_number(name, middle) in taken:
            taken_number = middle
        else:
            free_number = middle
    return _add_number(name, free_number)


def _parse_last_part(url: str) -> str:
    try:
        name = unquote(urlsplit(url).path.rpartition("/")[2], errors="strict")
        return normalize_key(name) if "/" not in name else "file"
    except (ValueError, InvalidJob):
        return "file"


def _add_number(name: str, number: int) -> str:
    stem, dot, ending = name.rpartition(".")
    if not stem or len(ending) > 16:  # ".profile", "README", "v1.some long text"
        stem, dot, ending = name, "", ""
    tail = f"-{number}{dot}{ending}"
    room = _MAX_PART - len(tail.encode())
    return stem.encode()[:room].decode(errors="ignore") + tail


def find_store_in_folder(url: str) -> str:
    """Return the store that `export run` keeps in a target's folder, or else the URL."""
    path = Path(url, OWN_FOLDER, "jobs.db")
    return str(path) if path.is_file() else url
