"""Merge fragments into one text, and split a reply into messages that a channel accepts.

All functions are pure.
"""

import unicodedata
from collections.abc import Iterable, Sequence

from holdfast.chat.model import Fragment


def sort_fragments(fragments: Iterable[Fragment]) -> tuple[Fragment, ...]:
    """Return the fragments in the order in which they were received.

    The result does not depend on the order in which they were staged.
    """
    return tuple(sorted(fragments, key=lambda row: (row.received_at, row.message_sid)))


def merge_texts(fragments: Sequence[Fragment]) -> str:
    """Join the fragments in the given order, each on one line or more."""
    return "\n".join(map(_render_fragment, fragments))


def _render_fragment(fragment: Fragment) -> str:
    """Return the text and the names of its attachments.

    Attachments are named because a picture without words needs an answer, too.
    """
    attached = [f"[attached: {kind}]" for kind in fragment.media]
    return "\n".join([*([fragment.body] if fragment.body else []), *attached])


def split_text(text: str, max_units: int) -> list[str]:
    """Split `text` into parts of at most `max_units` UTF-16 units, as providers count them.

    The cut is after a paragraph, a line, a sentence or a word if there is one in the second
    half of a part. It is never between a letter and its accents, or inside an emoji that
    consists of several characters.
    """
    parts = []
    rest = text.strip()
    while _count_units(rest) > max_units:
        cut = _find_cut(rest, _count_fitting(rest, max_units))
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [part for part in (*parts, rest) if part]


def _count_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _count_fitting(text: str, max_units: int) -> int:
    """Return how many characters of `text` fit."""
    units = 0
    for index, letter in enumerate(text):
        units += 2 if ord(letter) > 0xFFFF else 1
        if units > max_units:
            return index
    return len(text)


def _find_cut(text: str, max_length: int) -> int:
    for mark in ("\n\n", "\n", ". ", "! ", "? ", " "):
        position = text.rfind(mark, max_length // 2, max_length)
        if position > 0:
            return position + len(mark)
    cut = max_length
    while cut > max_length // 2 and _is_joined(text[cut - 1], text[cut]):
        cut -= 1
    return max(1, cut)


_ZERO_WIDTH_JOINER = "\u200d"


def _is_joined(before: str, after: str) -> bool:
    """Check whether a reader sees these two characters as one."""
    if _ZERO_WIDTH_JOINER in (before, after) or "\ufe00" <= after <= "\ufe0f":
        return True
    if _is_flag(before) and _is_flag(after):
        return True
    skin = "\U0001f3fb" <= after <= "\U0001f3ff"
    return skin or unicodedata.combining(after) != 0


def _is_flag(letter: str) -> bool:
    return "\U0001f1e6" <= letter <= "\U0001f1ff"
