"""The mount table: which filesystem a path is on, and with which options."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/mounts")
_OCTAL = re.compile(r"\\(?P<code>[0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted filesystem."""

    point: str
    kind: str
    options: frozenset[str]


def parse_mounts(text: str) -> list[Mount]:
    """Parse the text of /proc/mounts."""
    mounts = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) >= 4:
            mounts.append(Mount(_unescape(words[1]), words[2], frozenset(words[3].split(","))))
    return mounts


def _unescape(word: str) -> str:
    """Replace the octal escapes of blanks and backslashes."""
    return _OCTAL.sub(lambda match: chr(int(match["code"], 8)), word)


def find_mount(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the mount of a path: the longest mount point above it, and the last of these.

    Returns None if this system has no mount table.
    """
    try:
        table = parse_mounts(mounts.read_text())
    except OSError:
        return None
    resolved = str(path.resolve())
    above = [m for m in table if os.path.commonpath([resolved, m.point]) == m.point]
    return max(enumerate(above), key=lambda im: (len(im[1].point), im[0]), default=(0, None))[1]
