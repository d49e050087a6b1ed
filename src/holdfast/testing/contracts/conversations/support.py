"""Words the promises are written in."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Staged,
    Turn,
    UnreadableFragment,
    Window,
    parked_id_of,
)
from holdfast.conversations.outbox import (
    PreparedReply,
    SendingReply,
    SentPart,
    SentReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.conversations.ports import ConversationStore
from holdfast.testing import ManualClock

OpenStore = Callable[[ManualClock], ConversationStore]
"""Open the test's store once more: every opening sees the same conversations."""

NOW = 1_800_000_000.0  # when a ManualClock begins
LATER = NOW + 30 * 86_400.0
KEY = ConversationKey("whatsapp:+4915700000001", "chat")
OTHER = ConversationKey("ada@example.org", "another chat")
CONFIGS: dict[str, Any] = {
    "channel_config": {"sender": "+4930000000", "tags": ["a", "b"], "limits": {"most": 3}},
    "ai_config": {"assistant_id": "asst-1", "on": True, "none": None},
}

# Languages of both directions, signs beyond 16 bits, and the one that ends strings in C.
ODD_TEXT = "שלום 👩\u200d👩\u200d👧 \x00 \u202eabc\n\t'\"\\ ñ"


def begun(
    store: ConversationStore, key: ConversationKey = KEY, status: str = "", **fields: Any
) -> Conversation:
    """A new conversation, as the store has it."""
    made = Conversation(key, status=status, created_at=NOW, updated_at=NOW, **fields)
    assert store.create(made)
    return made


def fragment(sid: str = "m1", key: ConversationKey = KEY, **fields: Any) -> Fragment:
    made = Fragment(key, sid, f"text of {sid}", received_at=NOW - 1.0, staged_at=NOW)
    return replace(made, **fields)


def stage(store: ConversationStore, *sids: str, key: ConversationKey = KEY) -> list[Fragment]:
    fragments = [fragment(sid, key) for sid in sids]
    for one in fragments:
        assert store.stage(one, expires_at=LATER)
    return fragments


def staged(store: ConversationStore, key: ConversationKey = KEY) -> list[str]:
    return sids_of(store.staged(key.conversation_id))


def sids_of(rows: Iterable[Staged]) -> list[str]:
    return sorted(row.message_sid for row in rows)


def conversation(store: ConversationStore, key: ConversationKey = KEY) -> Conversation:
    """The conversation there must be."""
    found = store.get(key)
    assert found is not None
    return found


def acquired(
    store: ConversationStore,
    owner: str = "first",
    *,
    key: ConversationKey = KEY,
    trigger_id: str = "trigger",
    now: float = NOW,
    seconds: float = 60.0,
) -> LockAcquired:
    """The lock, which must be to be had."""
    said = store.acquire(
        key, owner=owner, trigger_id=trigger_id, now=now, expires_at=now + seconds
    )
    assert isinstance(said, LockAcquired), said
    return said


def granted(store: ConversationStore, owner: str = "first", **how: Any) -> LockGrant:
    return acquired(store, owner, **how).grant


def taken_over(store: ConversationStore) -> tuple[LockGrant, LockGrant]:
    """Whoever had the lock was too slow; his grant, and that of who has it now."""
    zombie = granted(store, "zombie", trigger_id="of the zombie")
    owner = granted(store, "owner", trigger_id="of the owner", now=NOW + 60.0)
    return zombie, owner


def window(trigger_id: str = "w1", sid: str = "m1", **fields: Any) -> Window:
    made = Window(KEY.conversation_id, trigger_id, sid, opened_at=NOW, expires_at=NOW + 100.0)
    return replace(made, **fields)


def turn(*sids: str, at: float = NOW, reply: str = "r1", **fields: Any) -> Turn:
    """A batch and its reply."""
    made = Turn(
        sids=sids,
        user=HistoryMessage("user", f"asked {sids[0]}", at, sids[0], {"fragments": len(sids)}),
        assistant=HistoryMessage("assistant", f"answer {reply}", at + 1.0, reply, {"n": [1]}),
        thread_id="thread",
        thread_mark=f"mark of {reply}",
        prompt_tokens=10,
        completion_tokens=3,
    )
    return replace(made, **fields)


def answered(store: ConversationStore, *sids: str, key: ConversationKey = KEY) -> None:
    """A whole turn of messages that need not be staged."""
    grant = granted(store, f"who answers {sids[0]}", key=key)
    store.finish(grant, turn(*sids, reply=f"reply to {sids[0]}"), now=NOW, remember_until=LATER)


def parked(*rows: Staged, key: ConversationKey = KEY, **fields: Any) -> ParkedBatch:
    ids = parked_id_of(key, (row.message_sid for row in rows))
    return replace(ParkedBatch(ids, key, "the number does not exist", NOW, rows), **fields)


def damaged(sid: str = "broken", key: ConversationKey = KEY) -> UnreadableFragment:
    row = {"conversation_id": key.conversation_id, "message_sid": sid, "odd": "value"}
    return UnreadableFragment(sid, "it has no body", row)


ANSWER = WriterAnswer("Tomorrow at nine. 👍", "mark", prompt_tokens=12, completion_tokens=5)
PARTS = (SentPart("SM1", "queued"), SentPart("SM2", "sent"))
OUTBOXES = [
    WritingReply(("m1", "m2")),
    PreparedReply(("m1", "m2"), ANSWER),
    SendingReply(("m1", "m2"), ANSWER, (), NOW + 0.25),
    SendingReply(("m1", "m2"), ANSWER, PARTS[:1], NOW + 0.5),
    SentReply(("m1", "m2"), ANSWER, PARTS),
]


def all_of(store: ConversationStore, key: ConversationKey = KEY) -> object:
    """All there is, to see that nothing was changed."""
    return (
        store.get(key),
        sorted(store.staged(key.conversation_id), key=lambda row: row.message_sid),
        store.history(key, limit=1_000),
        store.window(key.conversation_id),
        sorted(store.parked(), key=lambda one: one.parked_id),
        store.processed(key, {f"m{n}" for n in range(10)}),
    )
