"""Compare the store with the logs of the sender and the writer, and list broken promises."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.chat_roles import ChatWorkspace
from chaos.file_providers import sent
from chaos.rounds import Promises
from holdfast.chat.model import Conversation, HistoryMessage, ParkedBatch, Status
from holdfast.chat.outbox import SendingReply

_SID = re.compile(r"<(m-\d+)>")
_UNKNOWN_SEND = "it is not known whether the reply was sent"


@dataclass
class ChatAccounting(Promises):
    """The final state of one round. Each check lists what is wrong."""

    workspace: ChatWorkspace
    conversations: list[Conversation] = field(default_factory=list)
    histories: list[list[HistoryMessage]] = field(default_factory=list)
    parked: list[ParkedBatch] = field(default_factory=list)
    staged: int = 0
    replies: Counter[str] = field(default_factory=Counter)  # the number by message
    questions: Counter[str] = field(default_factory=Counter)
    webhooks: int = 0

    def read(self) -> "ChatAccounting":
        """Read the store and the logs."""
        with self.workspace.store() as store:
            self.conversations = list(store.conversations())
            keys = [conversation.key for conversation in self.conversations]
            self.histories = [store.history(key, limit=10_000) for key in keys]
            self.parked = list(store.parked())
            self.staged = sum(entry.fragments for entry in store.waiting())
        self.replies = _count_sids(entry["text"] for entry in sent(self.workspace.sent))
        questions = self.workspace.questions.lines()
        self.questions = _count_sids(entry["asked"] for entry in questions)
        self.webhooks = len(self.workspace.delivered.lines())
        return self

    def count_answered(self) -> Counter[str]:
        """Return how often each message is in the history."""
        messages = (message for history in self.histories for message in history)
        asked = (message for message in messages if message.role == "user")
        return Counter(sid for message in asked for sid in message.details["sids"])

    def count_parked(self) -> Counter[str]:
        """Return how often each message is parked."""
        return Counter(sid for batch in self.parked for sid in batch.sids)

    # -- promises

    def find_lost_or_repeated(self) -> Iterator[str]:
        """Yield messages that are not either answered or parked exactly once (I-MS-1)."""
        answered, parked = self.count_answered(), self.count_parked()
        for sid in self.workspace.sids():
            if answered[sid] + parked[sid] != 1:
                yield f"{sid}: {answered[sid]} times answered, {parked[sid]} times parked"

    def find_sent_twice(self) -> Iterator[str]:
        """Yield messages that got more than one reply (I-MS-2)."""
        for sid, count in self.replies.items():
            if count > 1:
                yield f"{sid}: {count} replies"

    def find_never_sent(self) -> Iterator[str]:
        """Yield messages whose reply is in the history but was never sent."""
        yield from (sid for sid in self.count_answered() if not self.replies[sid])

    def find_wrongly_parked(self) -> Iterator[str]:
        """Yield batches that were parked although it was known whether the reply was sent."""
        for batch in self.parked:
            if batch.reason != _UNKNOWN_SEND or not isinstance(batch.outbox, SendingReply):
                yield f"{batch.sids}: {batch.reason}"

    def find_unfinished(self) -> Iterator[str]:
        """Yield stranded messages, locks and outboxes (I-MS-4, I-MS-5, I-MS-6)."""
        if self.staged:
            yield f"{self.staged} messages are stranded"
        for conversation in self.conversations:
            is_open = conversation.status == Status.PROCESSING
            if is_open or conversation.lock_trigger or conversation.outbox:
                name = conversation.key.conversation_id
                yield f"{name}: {conversation.status}, {conversation.outbox}"

    def find_out_of_order(self) -> Iterator[str]:
        """Yield histories that are not alternating pairs, numbered without a gap (I-MS-6)."""
        for conversation, history in zip(self.conversations, self.histories, strict=True):
            roles = [message.role for message in history]
            numbers = [message.seq for message in history]
            pairs = ["user", "assistant"] * (len(roles) // 2)
            if roles != pairs or numbers != list(range(1, len(roles) + 1)):
                yield f"{conversation.key.conversation_id}: {roles} {numbers}"

    def format_summary(self) -> str:
        """Return the totals in one line."""
        answered, parked = self.count_answered(), self.count_parked()
        lost = set(self.workspace.sids()) - set(answered) - set(parked)
        sent_and_parked = sum(bool(self.replies[sid]) for sid in parked)
        asked_twice = sum(count > 1 for count in self.questions.values())
        return (
            f"{self.workspace.messages} messages in {self.webhooks} webhooks, "
            f"{sum(map(len, self.histories)) // 2} turns; lost {len(lost)}, "
            f"twice in the history {sum(count > 1 for count in answered.values())}, "
            f"sent twice {sum(1 for _ in self.find_sent_twice())}; parked {len(parked)} "
            f"({sent_and_parked} were sent), "
            f"wrongly {sum(1 for _ in self.find_wrongly_parked())}; "
            f"asked twice {asked_twice}"
        )


def _count_sids(texts: Iterator[str]) -> Counter[str]:
    return Counter(sid for text in texts for sid in _SID.findall(text))
