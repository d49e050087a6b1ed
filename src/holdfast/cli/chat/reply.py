"""Waiting for the reply to messages that were just staged."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli.durations import in_words
from holdfast.cli.errors import NotFound
from holdfast.conversations.model import ParkedBatch
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.conversations.model import ConversationKey, HistoryMessage

_LOOK_SECONDS = 0.2
_FAR_BACK = 100  # messages of the history in which the reply is looked for


@dataclass(frozen=True, slots=True)
class ReplyWait:
    """The replies, in order; usually one."""

    replies: "list[HistoryMessage]"


def await_reply(
    app: "ChatApp", key: "ConversationKey", sids: list[str], timeout: float | None
) -> ReplyWait:
    """Raises NotFound: none came in time, or a person must look."""
    seconds = _patience(app) if timeout is None else timeout
    until = SYSTEM_CLOCK.monotonic() + seconds
    while app.store.processed(key, sids) != set(sids):
        if SYSTEM_CLOCK.monotonic() >= until:
            raise NotFound(
                f"no reply after {in_words(seconds)}: `holdfast chat work` must run, here "
                "or in another terminal; the message is kept"
            )
        SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
    if (parked := _parked(app, sids)) is not None:
        raise NotFound(f"parked: {parked.reason}; `holdfast chat parked` shows the way on")
    return ReplyWait(_replies(app, key, set(sids)))


def _patience(app: "ChatApp") -> float:
    """All that a reply may take where nothing fails, and a little more."""
    terms = app.settings.terms
    return terms.max_wait_seconds + terms.writer_seconds + terms.sender_seconds


def _parked(app: "ChatApp", sids: list[str]) -> ParkedBatch | None:
    return next((one for one in app.store.parked() if not set(sids).isdisjoint(one.sids)), None)


def _replies(app: "ChatApp", key: "ConversationKey", sids: set[str]) -> "list[HistoryMessage]":
    """What was answered to batches with one of these in it."""
    history = app.store.history(key, limit=_FAR_BACK)
    ours = {one.seq for one in history if one.role == "user" and _holds(one, sids)}
    return [one for one in history if one.role == "assistant" and one.seq - 1 in ours]


def _holds(message: "HistoryMessage", sids: set[str]) -> bool:
    return not sids.isdisjoint([message.message_sid, *message.details.get("sids", ())])
