"""Choose dead letters: by a text, by the kind of their reason, or by a field of their body.

Reasons name hosts, ids and numbers. Without these, the reasons of one fault are the same.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from holdfast.queue.info import MessageInfo, MessagePage, MessageState
from holdfast.queue.manager import QueueManager
from holdfast.queue.search import contains_text

MAX_SCANNED = 5_000  # dead letters that are grouped by their reasons
_PAGE = 200
_BATCH = 500
_MAX_SEARCHED = 100_000
_MAX_KIND_LENGTH = 160
_VARIABLE = re.compile(r"""'[^']*'|"[^"]*"|\S*[0-9]\S*""")
_GAPS = re.compile(r"…(?:[\s:,]*…)+")


def simplify_reason(reason: str | None) -> str:
    """Return a reason without what differs between messages of the same fault."""
    text = _VARIABLE.sub("…", " ".join((reason or "").split()))
    return _GAPS.sub("…", text)[:_MAX_KIND_LENGTH]


@dataclass(frozen=True, slots=True)
class ReasonKind:
    """Dead letters whose reasons are alike: the reason without its variable parts."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class ReasonKinds:
    """The kinds of reasons, the most frequent first, of the dead letters that were read."""

    kinds: tuple[ReasonKind, ...]
    scanned: int
    is_complete: bool


def group_reasons(queue: QueueManager[Any], max_kinds: int = 12) -> ReasonKinds:
    """Group the dead letters of a queue, up to a number, by their reasons."""
    counts: Counter[str] = Counter()
    scanned, after = 0, None
    while scanned < MAX_SCANNED:
        page = queue.browse(MessageState.FAILED, after=after, limit=_BATCH)
        counts.update(simplify_reason(message.reason) for message in page.messages)
        scanned, after = scanned + len(page.messages), page.after
        if after is None:
            break
    kinds = tuple(ReasonKind(*pair) for pair in counts.most_common(max_kinds))
    return ReasonKinds(kinds, scanned, after is None)


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters a person wants to see. Empty texts choose all."""

    text: str = ""  # in the reason or the id
    kind: str = ""  # of the reason, as `simplify_reason` returns it
    field: str = ""  # NAME=VALUE of the body

    @property
    def is_empty(self) -> bool:
        """Whether all dead letters are chosen."""
        return not (self.text or self.kind or self.field)

    def matches(self, message: MessageInfo) -> bool:
        """Return whether a dead letter has the text and the kind of reason."""
        has_text = contains_text(message.reason, self.text) or contains_text(
            message.id, self.text
        )
        return has_text and self.kind in ("", simplify_reason(message.reason))


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Dead letters that were chosen, and where to go on reading, if there are more."""

    messages: Sequence[MessageInfo]
    after: str | None
    is_cut: bool = False  # the search took too long, or there are more than it returns


def read_dead_page(
    queue: QueueManager[Any],
    wanted: DeadFilter,
    *,
    after: str | None = None,
    limit: int = 50,
    is_late: Callable[[], bool] = lambda: False,
) -> DeadPage:
    """Return at least `limit` dead letters that were chosen, if there are as many.

    They come without bodies. It stops when `is_late` returns True, with what it has. Raises
    Unsupported for a field if the queue cannot be searched.
    """
    if wanted.field:
        messages, is_cut = _search(queue, wanted, limit, is_late)
        return DeadPage(messages, None, is_cut)
    chosen: list[MessageInfo] = []
    size = limit if wanted.is_empty else _PAGE
    while True:
        page = queue.browse(MessageState.FAILED, after=after, limit=size)
        chosen += filter(wanted.matches, page.messages)
        after = page.after
        late = is_late()
        if after is None or len(chosen) >= limit or late:
            return DeadPage(chosen, after, is_cut=late and after is not None)


class _Late(Exception):
    """A search took too long."""


def _search(
    queue: QueueManager[Any], wanted: DeadFilter, limit: int, is_late: Callable[[], bool]
) -> tuple[list[MessageInfo], bool]:
    """Return messages with the field, and whether the search was cut short."""

    def stop_late(count: int) -> None:
        if is_late():
            raise _Late

    name, _, value = wanted.field.partition("=")
    chosen: list[MessageInfo] = []
    found = queue.search(
        MessageState.FAILED, where={name: value}, limit=_MAX_SEARCHED, on_progress=stop_late
    )
    with suppress(_Late):
        for message in found:
            if wanted.matches(message):
                chosen.append(replace(message, body=None))
            if len(chosen) > limit:
                return chosen[:limit], True
        return chosen, False
    return chosen, True


def iterate_dead(queue: QueueManager[Any], wanted: DeadFilter) -> Iterator[list[MessageInfo]]:
    """Yield the dead letters that were chosen, in batches that may be removed meanwhile."""
    if wanted.field:
        messages, _ = _search(queue, wanted, _MAX_SEARCHED, lambda: False)
        for start in range(0, len(messages), _BATCH):
            yield messages[start : start + _BATCH]
        return
    if "peek" not in queue.capabilities:
        # Reading hides its dead letters and finds them in no order, so all are read once.
        if messages := list(filter(wanted.matches, queue.dead_letters(_MAX_SEARCHED))):
            yield messages
        return
    page: MessagePage | None = queue.browse(MessageState.FAILED, limit=_BATCH)
    while page is not None:
        # Read before this batch is removed, because the next one follows its last message.
        following = None
        if page.after is not None:
            following = queue.browse(MessageState.FAILED, after=page.after, limit=_BATCH)
        if batch := list(filter(wanted.matches, page.messages)):
            yield batch
        page = following
