"""Do the books balance? By the store's word, and by the sender's and the writer's."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.chat_cast import Place
from chat_crash.partners import sent
from holdfast.conversations.model import Conversation, HistoryMessage, ParkedBatch, Status
from holdfast.conversations.outbox import SendingReply

_SID = re.compile(r"<(m-\d+)>")
_IN_DOUBT = "it is not known whether the reply was sent"


@dataclass
class ChatBooks:
    """Each check lists what is wrong."""

    place: Place
    conversations: list[Conversation] = field(default_factory=list)
    histories: list[list[HistoryMessage]] = field(default_factory=list)
    parked: list[ParkedBatch] = field(default_factory=list)
    staged: int = 0
    replies: Counter[str] = field(default_factory=Counter)  # by message
    questions: Counter[str] = field(default_factory=Counter)
    webhooks: int = 0

    def read(self) -> "ChatBooks":
        with self.place.store() as store:
            self.conversations = list(store.conversations())
            self.histories = [store.history(c.key, limit=10_000) for c in self.conversations]
            self.parked = list(store.parked())
            self.staged = sum(one.fragments for one in store.waiting())
        self.replies = _sids(one["text"] for one in sent(self.place.sent))
        self.questions = _sids(one["asked"] for one in self.place.asked.lines())
        self.webhooks = len(self.place.came.lines())
        return self

    def answered(self) -> Counter[str]:
        users = [one for history in self.histories for one in history if one.role == "user"]
        return Counter(sid for one in users for sid in one.details["sids"])

    def put_aside(self) -> Counter[str]:
        return Counter(sid for one in self.parked for sid in one.sids)

    # -- promises

    def lost_or_doubled(self) -> Iterator[str]:
        """I-MS-1."""
        answered, parked = self.answered(), self.put_aside()
        for sid in self.place.sids():
            if answered[sid] + parked[sid] != 1:
                yield f"{sid}: {answered[sid]} times answered, {parked[sid]} times parked"

    def sent_twice(self) -> Iterator[str]:
        """I-MS-2."""
        yield from (f"{sid}: {n} replies" for sid, n in self.replies.items() if n > 1)

    def never_sent(self) -> Iterator[str]:
        """What is in the history as a reply was really sent."""
        yield from (sid for sid in self.answered() if not self.replies[sid])

    def parked_without_doubt(self) -> Iterator[str]:
        for one in self.parked:
            if one.reason != _IN_DOUBT or not isinstance(one.outbox, SendingReply):
                yield f"{one.sids}: {one.reason}"

    def not_at_rest(self) -> Iterator[str]:
        """I-MS-4, I-MS-5, I-MS-6."""
        if self.staged:
            yield f"{self.staged} messages are stranded"
        for one in self.conversations:
            if one.status == Status.PROCESSING or one.lock_trigger or one.outbox:
                yield f"{one.key.conversation_id}: {one.status}, {one.outbox}"

    def out_of_order(self) -> Iterator[str]:
        """I-MS-6: question and answer, numbered without a gap."""
        for conversation, history in zip(self.conversations, self.histories, strict=True):
            roles = [one.role for one in history]
            numbers = [one.seq for one in history]
            pairs = ["user", "assistant"] * (len(roles) // 2)
            if roles != pairs or numbers != list(range(1, len(roles) + 1)):
                yield f"{conversation.key.conversation_id}: {roles} {numbers}"

    def check(self) -> None:
        for promise in (
            self.lost_or_doubled,
            self.sent_twice,
            self.never_sent,
            self.parked_without_doubt,
            self.not_at_rest,
            self.out_of_order,
        ):
            wrong = list(promise())
            assert not wrong, f"{promise.__name__}: {wrong}"

    def summary(self) -> str:
        answered, parked = self.answered(), self.put_aside()
        lost = set(self.place.sids()) - set(answered) - set(parked)
        out = sum(bool(self.replies[sid]) for sid in parked)
        paid = sum(n > 1 for n in self.questions.values())
        return (
            f"{self.place.messages} messages in {self.webhooks} webhooks, "
            f"{sum(map(len, self.histories)) // 2} turns; lost {len(lost)}, "
            f"twice in the history {sum(n > 1 for n in answered.values())}, "
            f"sent twice {sum(1 for _ in self.sent_twice())}; parked {len(parked)} "
            f"({out} were out), without doubt {sum(1 for _ in self.parked_without_doubt())}; "
            f"asked twice {paid}"
        )


def _sids(texts: Iterator[str]) -> Counter[str]:
    return Counter(sid for text in texts for sid in _SID.findall(text))
