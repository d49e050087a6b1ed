"""Many fragments into one text, one reply into messages a channel takes. All pure."""

import unicodedata
from collections.abc import Iterable, Sequence

from holdfast.conversations.model import Fragment


def in_order(fragments: Iterable[Fragment]) -> tuple[Fragment, ...]:
    """As they were received; the same whatever order they were staged in."""
    return tuple(sorted(fragments, key=lambda one: (one.received_at, one.message_sid)))


def merged(fragments: Sequence[Fragment]) -> str:
    """One line or more for each fragment, in the order given."""
    return "\n".join(map(_text_of, fragments))


def _text_of(fragment: Fragment) -> str:
    """Attachments are named: a picture without words is something to answer, too."""
    attached = [f"[attached: {kind}]" for kind in fragment.media]
    return "\n".join([*([fragment.body] if fragment.body else []), *attached])


def split(text: str, longest: int) -> list[str]:
    """`text` in parts of at most `longest` UTF-16 units, as providers count them.

    Cut after a paragraph, a line, a sentence or a word where there is one in the second
    half of a part; never inside a letter and its accents, or an emoji made of several.
    """
    parts = []
    rest = text.strip()
    while _units(rest) > longest:
        cut = _cut(rest, _fitting(rest, longest))
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [part for part in (*parts, rest) if part]


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _fitting(text: str, longest: int) -> int:
    """How many characters of `text` fit."""
    units = 0
    for index, letter in enumerate(text):
        units += 2 if ord(letter) > 0xFFFF else 1
        if units > longest:
            return index
    return len(text)


def _cut(text: str, most: int) -> int:
    for mark in ("\n\n", "\n", ". ", "! ", "? ", " "):
        found = text.rfind(mark, most // 2, most)
        if found > 0:
            return found + len(mark)
    cut = most
    while cut > most // 2 and _joined(text[cut - 1], text[cut]):
        cut -= 1
    return max(1, cut)


_ZERO_WIDTH_JOINER = "\u200d"


def _joined(before: str, after: str) -> bool:
    """These two are one to the reader."""
    if _ZERO_WIDTH_JOINER in (before, after) or "\ufe00" <= after <= "\ufe0f":
        return True
    if _is_flag(before) and _is_flag(after):
        return True
    skin = "\U0001f3fb" <= after <= "\U0001f3ff"
    return skin or unicodedata.combining(after) != 0


def _is_flag(letter: str) -> bool:
    return "\U0001f1e6" <= letter <= "\U0001f1ff"
