"""A store of conversations in every state, with numbers and texts that pages must mask."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Turn,
    Window,
    make_parked_id,
)
from holdfast.chat.outbox import SendingReply, SentPart, WriterAnswer
from holdfast.chat.ports import ConversationStore
from holdfast.lease.clock import SYSTEM_CLOCK

NUMBER = "+4915712345678"
QUESTION, ANSWER = "where is my parcel", "it is on its way"
EVIL = "<script>alert(1)</script>\x1b[2J\u202e"
ANSWERED = ConversationKey(f"whatsapp:{NUMBER}", NUMBER)
WAITING = ConversationKey("whatsapp:+4930111222333", "waiting-chat")
LOCKED = ConversationKey("ada@example.org", "locked-chat")
PARKED_ID = make_parked_id(ANSWERED, ["sid-parked"])


def make_environment(folder: Path) -> Mapping[str, str]:
    """Return the settings of a chat that keeps everything in a folder."""
    store = str(folder / "chat.db")
    return {"HOLDFAST_DATA_DIR": str(folder), "HOLDFAST_CHAT_STORE": store}


def fill_chat(folder: Path) -> ChatApp:
    """Store an answered, a waiting and a locked conversation, and a parked batch."""
    app = build_chat(make_environment(folder))
    store, now = app.store, SYSTEM_CLOCK.time()
    for key in (ANSWERED, WAITING, LOCKED):
        store.create(Conversation(key, created_at=now - 60, updated_at=now - 60))
    answer(store, "sid-answered", now)
    park(store, now)
    for number in range(2):
        stage(store, WAITING, f"sid-{number}", now)
    window = Window(WAITING.conversation_id, "t", "sid-0", now, now + 600)
    store.open_window(window, now=now, untriggered_before=now)
    grant = _lock(store, LOCKED, now)
    reply = WriterAnswer(ANSWER)
    store.note(grant, SendingReply(("s",), reply, (SentPart("p", "sent"),), now), "")
    return app


def stage(store: ConversationStore, key: ConversationKey, sid: str, now: float) -> None:
    """Stage a message."""
    store.stage(Fragment(key, sid, f"{QUESTION} {EVIL}", now, now), expires_at=now + 9e6)


def park(store: ConversationStore, now: float, *others: str) -> None:
    """Park a batch whose reply may have been sent, or those of other conversations."""
    for key in [ConversationKey("a@b.example", name) for name in others] or [ANSWERED]:
        fragment = Fragment(key, "sid-parked", f"{QUESTION} {EVIL}", now, now)
        reply = SendingReply(("sid-parked",), WriterAnswer(ANSWER), (), now)
        parked_id = make_parked_id(key, ["sid-parked"])
        parked = ParkedBatch(parked_id, key, f"unclear {EVIL}", now, (fragment,), reply)
        store.park(None, parked, remember_until=now + 9e6)


def _lock(store: ConversationStore, key: ConversationKey, now: float) -> LockGrant:
    result = store.acquire(key, owner="o", trigger_id="t", now=now, expires_at=now + 600)
    assert isinstance(result, LockAcquired)
    return result.grant


def answer(store: ConversationStore, sid: str, now: float) -> None:
    """Write a question and its answer to the history."""
    turn = Turn(
        (sid,),
        HistoryMessage("user", f"{QUESTION} {EVIL}", now, sid),
        HistoryMessage("assistant", ANSWER, now, f"reply-{sid}"),
        thread_id="",
        thread_mark="",
        prompt_tokens=1,
        completion_tokens=2,
    )
    grant = _lock(store, ANSWERED, now)
    store.finish(grant, turn, now=now, remember_until=now + 9e6)
