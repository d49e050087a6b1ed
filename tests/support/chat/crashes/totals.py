"""Check that the totals match, in the store and in the ledgers of writer and sender."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from chaos.file_providers import sent
from holdfast.chat.model import Conversation, HistoryMessage, ParkedBatch, Status
from holdfast.chat.outbox import SendingReply
from holdfast.chat.providers.local import read_outbox
from support.chat.crashes.worker_process import KEY, Place


@dataclass(frozen=True)
class Books:
    """Everything that is known after all work ended."""

    history: list[HistoryMessage]
    parked: list[ParkedBatch]
    staged: int
    conversation: Conversation | None  # None if no message arrived
    replies: list[tuple[int, str]]  # of each sent message: its part number and its text
    asked: list[str]  # the questions to the writer
    pages: int

    def count_answered(self) -> Counter[str]:
        """Count how often each message is in the history."""
        users = [message for message in self.history if message.role == "user"]
        return Counter(sid for message in users for sid in message.details["sids"])

    def count_parked(self) -> Counter[str]:
        """Count how often each message is parked."""
        return Counter(sid for batch in self.parked for sid in batch.sids)

    def count_sent(self, sid: str) -> list[int]:
        """Count how often each part of the reply to this message was sent."""
        counts = Counter(index for index, text in self.replies if f"<{sid}>" in text)
        return [counts[index] for index in range(self.pages)]

    # -- promises

    def check(self, owed: Iterable[str], *, at_most: int = 1, asked: int = 1) -> None:
        """Check all promises.

        A part may have been sent `at_most` times, and the writer asked `asked` times.
        """
        self.check_finished()
        self.check_history()
        for sid in sorted(set(owed)):
            self.check_once(sid, at_most, asked)

    def check_finished(self) -> None:
        """Check that no lock is held, nothing waits and no work is left.

        (I-MS-4, I-MS-5, I-MS-6)
        """
        assert self.staged == 0, "messages are stranded"
        if self.conversation is None:
            return
        assert self.conversation.status != Status.PROCESSING, "the lock is held"
        assert self.conversation.lock_trigger == ""
        assert self.conversation.outbox is None, "the outbox is not cleared"

    def check_history(self) -> None:
        """Check that questions and replies are in order and unchanged (I-MS-6)."""
        roles = [message.role for message in self.history]
        assert roles == ["user", "assistant"] * (len(roles) // 2), roles
        assert [message.seq for message in self.history] == list(range(1, len(roles) + 1))
        for question, answer in zip(self.history[::2], self.history[1::2], strict=True):
            assert question.body == "\n".join(f"<{sid}>" for sid in question.details["sids"])
            assert question.body in answer.body, "the reply belongs to other messages"
            assert len(answer.details["sids"]) == self.pages

    def check_once(self, sid: str, at_most: int, may_ask: int) -> None:
        """Check that the message was answered once and paid for once.

        (I-MS-1, I-MS-2, MS-21)
        """
        answered, parked = self.count_answered()[sid], self.count_parked()[sid]
        assert answered + parked == 1, f"{sid}: {answered} times answered, {parked} parked"
        times = self.count_sent(sid)
        assert max(times) <= at_most, f"{sid}: its parts were sent {times} times"
        assert parked or min(times) >= 1, f"{sid}: answered, but sent {times} times"
        asked = sum(f"<{sid}>" in text for text in self.asked)
        assert asked <= may_ask, f"{sid}: the writer was asked {asked} times"
        for batch in self.parked:
            assert batch.reason == "it is not known whether the reply was sent", batch.reason


def read_books(place: Place) -> Books:
    """Read the store and the ledgers."""
    return Books(
        place.store.history(KEY, limit=100),
        list(place.store.parked()),
        len(place.store.staged(KEY.conversation_id)),
        place.store.get(KEY),
        _read_replies(place),
        [line["asked"] for line in place.asked.lines()],
        place.scene.pages,
    )


def _read_replies(place: Place) -> list[tuple[int, str]]:
    if place.scene.sender == "outbox":
        return [(reply.index, reply.text) for reply in read_outbox(place.letters)]
    return [(line["index"], line["text"]) for line in sent(place.sent)]


def is_being_sent(place: Place) -> bool:
    """Check whether the outbox says that a part may have been sent."""
    conversation = place.store.get(KEY)
    return conversation is not None and isinstance(conversation.outbox, SendingReply)
