"""Wait for the reply to messages that were just staged."""

from typing import TYPE_CHECKING

from holdfast.cli.errors import NotFound
from holdfast.cli.formatting import format_duration
from holdfast.conversations.model import ParkedBatch
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.conversations.model import ConversationKey, HistoryMessage

_POLL_SECONDS = 0.2
_MAX_HISTORY = 100  # messages that are searched for the reply


def wait_for_reply(
    app: "ChatApp", key: "ConversationKey", sids: list[str], timeout: float | None
) -> "list[HistoryMessage]":
    """Wait for the replies, usually one, and return them in order.

    Raises NotFound if none came in time or the batch was parked.
    """
    seconds = _compute_timeout(app) if timeout is None else timeout
    until = SYSTEM_CLOCK.monotonic() + seconds
    while app.store.processed(key, sids) != set(sids):
        if SYSTEM_CLOCK.monotonic() >= until:
            raise NotFound(
                f"no reply after {format_duration(seconds)}; the message is kept: run "
                "`holdfast chat work`, here or in another terminal"
            )
        SYSTEM_CLOCK.sleep(_POLL_SECONDS)
    if (parked := _find_parked(app, sids)) is not None:
        raise NotFound(
            f"the batch was parked ({parked.reason}); decide with `holdfast chat parked`"
        )
    return _find_replies(app, key, set(sids))


def _compute_timeout(app: "ChatApp") -> float:
    """Return the maximum time that a reply takes if nothing fails."""
    policy = app.settings.policy
    return policy.max_wait_seconds + policy.writer_seconds + policy.sender_seconds


def _find_parked(app: "ChatApp", sids: list[str]) -> ParkedBatch | None:
    batches = app.store.parked()
    return next((batch for batch in batches if not set(sids).isdisjoint(batch.sids)), None)


def _find_replies(
    app: "ChatApp", key: "ConversationKey", sids: set[str]
) -> "list[HistoryMessage]":
    """Return the replies to batches that hold one of the messages."""
    history = app.store.history(key, limit=_MAX_HISTORY)
    batches = {
        message.seq for message in history if message.role == "user" and _has_any(message, sids)
    }
    return [
        message
        for message in history
        if message.role == "assistant" and message.seq - 1 in batches
    ]


def _has_any(message: "HistoryMessage", sids: set[str]) -> bool:
    return not sids.isdisjoint([message.message_sid, *message.details.get("sids", ())])
