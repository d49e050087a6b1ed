"""Helpers of the contract tests: values, and calls with usual arguments."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from holdfast.chat.model import (
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
    make_parked_id,
)
from holdfast.chat.outbox import (
    PreparedReply,
    SendingReply,
    SentPart,
    SentReply,
    UnclearReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.chat.ports import ConversationStore
from holdfast.testing import ManualClock

OpenStore = Callable[[ManualClock], ConversationStore]
"""A function that opens the test's store once more, with the same conversations."""

NOW = 1_800_000_000.0  # the start time of a ManualClock
LATER = NOW + 30 * 86_400.0
KEY = ConversationKey("whatsapp:+4915700000001", "chat")
OTHER = ConversationKey("ada@example.org", "another chat")
CONFIGS: dict[str, Any] = {
    "channel_config": {"sender": "+4930000000", "tags": ["a", "b"], "limits": {"most": 3}},
    "ai_config": {"assistant_id": "asst-1", "on": True, "none": None},
}

# Languages of both directions, characters beyond 16 bits, and a NUL character.
ODD_TEXT = "שלום 👩\u200d👩\u200d👧 \x00 \u202eabc\n\t'\"\\ ñ"


def create_conversation(
    store: ConversationStore, key: ConversationKey = KEY, status: str = "", **fields: Any
) -> Conversation:
    """Create a conversation, and return it."""
    made = Conversation(key, status=status, created_at=NOW, updated_at=NOW, **fields)
    assert store.create(made)
    return made


def make_fragment(sid: str = "m1", key: ConversationKey = KEY, **fields: Any) -> Fragment:
    """Return a fragment."""
    made = Fragment(key, sid, f"text of {sid}", received_at=NOW - 1.0, staged_at=NOW)
    return replace(made, **fields)


def stage_messages(
    store: ConversationStore, *sids: str, key: ConversationKey = KEY
) -> list[Fragment]:
    """Stage a fragment for each sid, and return the fragments."""
    fragments = [make_fragment(sid, key) for sid in sids]
    for row in fragments:
        assert store.stage(row, expires_at=LATER)
    return fragments


def list_staged_sids(store: ConversationStore, key: ConversationKey = KEY) -> list[str]:
    """Return the sids of the staged rows, sorted."""
    return sort_sids(store.staged(key.conversation_id))


def sort_sids(rows: Iterable[Staged]) -> list[str]:
    """Return the sids of the rows, sorted."""
    return sorted(row.message_sid for row in rows)


def get_conversation(store: ConversationStore, key: ConversationKey = KEY) -> Conversation:
    """Return the conversation, which must exist."""
    row = store.get(key)
    assert row is not None
    return row


def acquire_lock(
    store: ConversationStore,
    owner: str = "first",
    *,
    key: ConversationKey = KEY,
    trigger_id: str = "trigger",
    now: float = NOW,
    seconds: float = 60.0,
) -> LockAcquired:
    """Acquire the lock, which must be free."""
    result = store.acquire(
        key, owner=owner, trigger_id=trigger_id, now=now, expires_at=now + seconds
    )
    assert isinstance(result, LockAcquired), result
    return result


def acquire_grant(store: ConversationStore, owner: str = "first", **how: Any) -> LockGrant:
    """Acquire the lock, and return its grant."""
    return acquire_lock(store, owner, **how).grant


def take_over_lock(store: ConversationStore) -> tuple[LockGrant, LockGrant]:
    """Let a second worker take over the lock; return the stale grant and the new one."""
    stale = acquire_grant(store, "stale", trigger_id="of the stale holder")
    owner = acquire_grant(store, "owner", trigger_id="of the owner", now=NOW + 60.0)
    return stale, owner


def make_window(trigger_id: str = "w1", sid: str = "m1", **fields: Any) -> Window:
    """Return a window."""
    made = Window(KEY.conversation_id, trigger_id, sid, opened_at=NOW, expires_at=NOW + 100.0)
    return replace(made, **fields)


def make_turn(*sids: str, at: float = NOW, reply: str = "r1", **fields: Any) -> Turn:
    """Return a turn: a batch and its reply."""
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


def answer_messages(store: ConversationStore, *sids: str, key: ConversationKey = KEY) -> None:
    """Finish a turn with these messages, which need not be staged."""
    grant = acquire_grant(store, f"worker for {sids[0]}", key=key)
    store.finish(
        grant, make_turn(*sids, reply=f"reply to {sids[0]}"), now=NOW, remember_until=LATER
    )


def make_parked(*rows: Staged, key: ConversationKey = KEY, **fields: Any) -> ParkedBatch:
    """Return a parked batch of these rows."""
    parked_id = make_parked_id(key, (row.message_sid for row in rows))
    return replace(
        ParkedBatch(parked_id, key, "the number does not exist", NOW, rows), **fields
    )


def make_unreadable(sid: str = "broken", key: ConversationKey = KEY) -> UnreadableFragment:
    """Return a staged row that cannot be read."""
    row = {"conversation_id": key.conversation_id, "message_sid": sid, "odd": "value"}
    return UnreadableFragment(sid, "it has no body", row)


ANSWER = WriterAnswer("Tomorrow at nine. 👍", "mark", prompt_tokens=12, completion_tokens=5)
PARTS = (SentPart("SM1", "queued"), SentPart("SM2", "sent"))
OUTBOXES = [
    WritingReply(("m1", "m2")),
    PreparedReply(("m1", "m2"), ANSWER),
    SendingReply(("m1", "m2"), ANSWER, (), NOW + 0.25),
    SendingReply(("m1", "m2"), ANSWER, PARTS[:1], NOW + 0.5),
    UnclearReply(("m1", "m2"), ANSWER, PARTS[:1], NOW + 0.75, 2),
    SentReply(("m1", "m2"), ANSWER, PARTS),
]


def read_everything(store: ConversationStore, key: ConversationKey = KEY) -> object:
    """Return everything that is stored, to check that nothing changes."""
    return (
        store.get(key),
        sorted(store.staged(key.conversation_id), key=lambda row: row.message_sid),
        store.history(key, limit=1_000),
        store.window(key.conversation_id),
        sorted(store.parked(), key=lambda batch: batch.parked_id),
        store.processed(key, {f"m{n}" for n in range(10)}),
    )
