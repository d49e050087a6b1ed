"""Do the books balance? By the store's word, and by the ledgers of writer and sender."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from chat_crash.life import KEY, Place
from chat_crash.partners import sent
from holdfast.adapters.chat.outbox import letters
from holdfast.conversations.model import Conversation, HistoryMessage, ParkedBatch, Status
from holdfast.conversations.outbox import SendingReply


@dataclass(frozen=True)
class Books:
    """All that is known when nothing moves any more."""

    history: list[HistoryMessage]
    parked: list[ParkedBatch]
    staged: int
    conversation: Conversation | None  # None: nobody ever wrote
    replies: list[tuple[int, str]]  # of each message sent: which part it is, and its text
    asked: list[str]  # what the writer was asked
    pages: int

    def answered(self) -> Counter[str]:
        """How often each message is in the history."""
        users = [one for one in self.history if one.role == "user"]
        return Counter(sid for one in users for sid in one.details["sids"])

    def put_aside(self) -> Counter[str]:
        return Counter(sid for one in self.parked for sid in one.sids)

    def sendings(self, sid: str) -> list[int]:
        """How often each part of the reply to this message was sent."""
        counts = Counter(index for index, text in self.replies if f"<{sid}>" in text)
        return [counts[index] for index in range(self.pages)]

    # -- promises

    def check(self, owed: Iterable[str], *, at_most: int = 1, asked: int = 1) -> None:
        """`at_most`: how often a part may have been sent; `asked`: and the writer asked."""
        self.at_rest()
        self.in_pairs()
        for sid in sorted(set(owed)):
            self.once(sid, at_most, asked)

    def at_rest(self) -> None:
        """I-MS-4, I-MS-5, I-MS-6: nobody holds it, nothing waits, nothing is half done."""
        assert self.staged == 0, "messages are stranded"
        if self.conversation is None:
            return
        assert self.conversation.status != Status.PROCESSING, "the lock is held"
        assert self.conversation.lock_trigger == ""
        assert self.conversation.outbox is None, "the outbox is not cleared"

    def in_pairs(self) -> None:
        """I-MS-6: question and answer, in order, numbered; each body is there as it came."""
        roles = [one.role for one in self.history]
        assert roles == ["user", "assistant"] * (len(roles) // 2), roles
        assert [one.seq for one in self.history] == list(range(1, len(roles) + 1))
        for question, answer in zip(self.history[::2], self.history[1::2], strict=True):
            assert question.body == "\n".join(f"<{sid}>" for sid in question.details["sids"])
            assert question.body in answer.body, "answered to something else"
            assert len(answer.details["sids"]) == self.pages

    def once(self, sid: str, at_most: int, may_ask: int) -> None:
        """I-MS-1, I-MS-2. And the writer is paid once for each message, MS-21."""
        answered, parked = self.answered()[sid], self.put_aside()[sid]
        assert answered + parked == 1, f"{sid}: {answered} times answered, {parked} parked"
        times = self.sendings(sid)
        assert max(times) <= at_most, f"{sid}: its parts were sent {times} times"
        assert parked or min(times) >= 1, f"{sid}: answered, but sent {times} times"
        asked = sum(f"<{sid}>" in text for text in self.asked)
        assert asked <= may_ask, f"{sid}: the writer was asked {asked} times"
        for one in self.parked:
            assert one.reason == "it is not known whether the reply was sent", one.reason


def read(place: Place) -> Books:
    return Books(
        place.store.history(KEY, limit=100),
        list(place.store.parked()),
        len(place.store.staged(KEY.conversation_id)),
        place.store.get(KEY),
        _replies(place),
        [one["asked"] for one in place.asked.lines()],
        place.scene.pages,
    )


def _replies(place: Place) -> list[tuple[int, str]]:
    if place.scene.sender == "outbox":
        return [(one.index, one.text) for one in letters(place.letters)]
    return [(one["index"], one["text"]) for one in sent(place.sent)]


def on_its_way(place: Place) -> bool:
    """Is a part of a reply perhaps out, by what is written down?"""
    conversation = place.store.get(KEY)
    return conversation is not None and isinstance(conversation.outbox, SendingReply)
