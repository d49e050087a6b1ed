"""Ids on the command line, which may be written in full or as their beginning."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.arguments import is_service, to_limit
from holdfast.cli.console import info
from holdfast.cli.errors import UsageError

if TYPE_CHECKING:
    from holdfast.queue.manager import QueueManager
    from holdfast.queue.message import AnyMessage

_MAX_CANDIDATES = 5  # that an error names
_GENERATED = re.compile(r"[0-9a-f]{32}")  # the id of a message that was pushed without one
_PREFIX = re.compile(r"[0-9a-f]{4,31}")  # long enough to mean such an id


def complete_id(given: str, known: Iterable[str]) -> str:
    """Return the only known id that begins with `given`, or `given` if there is none.

    An id that is written in full comes before longer ones. Raises UsageError with the
    candidates if there are several.
    """
    matches: set[str] = set()
    for known_id in known if given else ():
        if known_id == given:
            return given
        if known_id.startswith(given):
            matches.add(known_id)
    if len(matches) > 1:
        shown = ", ".join(sorted(matches)[:_MAX_CANDIDATES])
        more = ", …" if len(matches) > _MAX_CANDIDATES else ""
        raise UsageError(
            f"{given!r} is the beginning of {len(matches):,} ids ({shown}{more}): write more "
            "of it"
        )
    return matches.pop() if matches else given


def complete_id_to_change(given: str, known: Iterable[str]) -> str:
    """Return an id as `complete_id` does, for a command that changes a message.

    Only generated ids are completed, because none of them is the beginning of another. An id
    such as order-1 may be the beginning of order-10, which must not be changed in its place.
    """
    if not _PREFIX.fullmatch(given):
        return given
    full = complete_id(
        given, (each for each in known if each == given or _GENERATED.fullmatch(each))
    )
    if full != given:
        info(f"{given} is {full}")
    return full


def complete_message_ids(
    manager: "QueueManager[AnyMessage]", given: Sequence[str], states: Sequence[str]
) -> list[str]:
    """Return the full ids of messages to change. The queue is read only for a prefix."""
    known: list[str] = []
    if any(map(_PREFIX.fullmatch, given)):
        known = list(list_message_ids(manager, states))
    return [complete_id_to_change(message_id, known) for message_id in given]


def list_message_ids(
    manager: "QueueManager[AnyMessage]", states: Sequence[str]
) -> Iterator[str]:
    """Yield the ids of all messages in these states. A long list shows its progress.

    SQS can list only its dead letters, so it yields no others.
    """
    from holdfast.cli.live_view import ProgressMeter
    from holdfast.queue.manager import MessageState

    with ProgressMeter("searching") as meter:
        for state in map(MessageState, states):
            if is_service(manager) and state is not MessageState.FAILED:
                continue
            for message in manager.peek(state, to_limit(0)):
                meter.advance(1)
                yield message.id
