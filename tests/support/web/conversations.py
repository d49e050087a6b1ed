"""A store of conversations in every state, with numbers and texts that pages must mask."""

from collections.abc import Mapping
from pathlib import Path

from tools import example_console as example

from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.model import ConversationKey, make_parked_id
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
    example.start(store, now - 60, ANSWERED, WAITING, LOCKED)
    answer(store, "sid-answered", now)
    park(store, now)
    for number in range(2):
        stage(store, WAITING, f"sid-{number}", now)
    example.open_window(store, WAITING, now, now + 600)
    sent = SentPart("p", "sent")
    reply = SendingReply(("s",), WriterAnswer(ANSWER), (sent,), now)
    store.note(example.lock(store, LOCKED, now + 540), reply, "")
    return app


def stage(store: ConversationStore, key: ConversationKey, sid: str, now: float) -> None:
    """Stage a message."""
    example.stage(store, key, sid, f"{QUESTION} {EVIL}", now)


def park(store: ConversationStore, now: float, *others: str) -> None:
    """Park a batch whose reply may have been sent, or those of other conversations."""
    for key in [ConversationKey("a@b.example", name) for name in others] or [ANSWERED]:
        example.park(store, key, f"{QUESTION} {EVIL}", f"unclear {EVIL}", now, ANSWER)


def answer(store: ConversationStore, sid: str, now: float) -> None:
    """Write a question and its answer to the history."""
    example.answer(store, ANSWERED, sid, f"{QUESTION} {EVIL}", ANSWER, now)
