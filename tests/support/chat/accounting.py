"""Compare a conversation store with what the providers did, and list broken promises."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from holdfast.chat.model import Conversation, HistoryMessage, Status
from holdfast.chat.outbox import SendingReply, UnclearReply
from holdfast.chat.ports import ConversationStore
from support.chat.providers import Line

_SID = re.compile(r"<([^>]+)>")
_UNKNOWN_SEND = "it is not known whether the reply was sent"


@dataclass
class ChatAccounting:
    """The state of conversations, in which every body and every part shows its sids.

    `sent` and `asked` are the lines of the ledgers. `max_sent` says how often a part of the
    reply to a message may have been sent.
    """

    store: ConversationStore
    sent: Sequence[Line]
    asked: Sequence[Line]
    max_sent: Callable[[str, int], int] = lambda sid, part: 1

    def __post_init__(self) -> None:
        self.conversations = list(self.store.conversations())
        keys = [conversation.key for conversation in self.conversations]
        self.histories = [self.store.history(key, limit=10_000) for key in keys]
        self.parked = list(self.store.parked())
        users = [message for history in self.histories for message in history[::2]]
        self.answered = Counter(sid for message in users for sid in message.details["sids"])
        self.parked_sids = Counter(sid for batch in self.parked for sid in batch.sids)
        self.replies = Counter(
            (sid, line["index"]) for line in self.sent for sid in find_sids(line["text"])
        )

    def count_asked(self) -> Counter[str]:
        """Count how often the writer was asked about each message."""
        return Counter(sid for line in self.asked for sid in find_sids(line["asked"]))

    # -- what holds at any time

    def find_wrong(self) -> Iterator[str]:
        """Yield the promises that are broken, whatever will happen next."""
        for (sid, part), times in self.replies.items():
            if times > self.max_sent(sid, part):
                yield f"I-MS-2: {sid} was answered {times} times in part {part}"
        for sid, times in (self.answered + self.parked_sids).items():
            if times > 1:
                yield f"I-MS-1: {sid} is in the history or parked {times} times"
        if not all(batch.reason for batch in self.parked):
            yield "I-MS-1: parked without a reason"
        questions: dict[str, set[str]] = defaultdict(set)
        for line in self.asked:
            for sid in find_sids(line["asked"]):
                questions[sid].add(line["asked"])
                if len(questions[sid]) > 1:
                    yield f"MS-21: {sid} was asked about in two questions"
        for conversation, history in zip(self.conversations, self.histories, strict=True):
            yield from self._find_wrong_history(conversation, history)

    def _find_wrong_history(
        self, conversation: Conversation, history: Sequence[HistoryMessage]
    ) -> Iterator[str]:
        if [message.seq for message in history] != list(range(1, len(history) + 1)):
            yield "I-MS-6: the history is not numbered in order"
        if [message.role for message in history] != ["user", "assistant"] * (len(history) // 2):
            yield "I-MS-6: the history is not made of pairs"
        sids: list[str] = []
        for question, answer in zip(history[::2], history[1::2], strict=False):
            asked = question.details["sids"]
            sids += asked
            if question.body != "\n".join(f"<{sid}>" for sid in asked):
                yield "I-MS-7: not merged in order"
            if question.body not in answer.body:
                yield "I-MS-6: this reply was written for other messages"
            parts = range(len(answer.details["sids"]))
            if not all(self.replies[sid, part] for sid in asked for part in parts):
                yield "I-MS-2: in the history, and never sent"
        if self.store.processed(conversation.key, sids) != set(sids):
            yield "I-MS-6: in the history, and not remembered as processed"
        if conversation.outbox is not None and set(conversation.outbox.sids) & set(sids):
            yield "I-MS-6: in the history, and in the outbox still"

    # -- what holds when no work is left

    def find_unfinished(
        self, owed: Collection[str], *, may_lock: bool = False
    ) -> Iterator[str]:
        """Yield what is wrong although nothing is left to do. `owed` was accepted."""
        if staged := sum(entry.fragments for entry in self.store.waiting()):
            yield f"I-MS-5: {staged} messages are staged, but no trigger will arrive"
        for conversation in self.conversations:
            locked = conversation.status == Status.PROCESSING or conversation.lock_trigger
            if locked and not may_lock:
                yield "I-MS-4: the lock is held, but no worker is active"
            if conversation.outbox is not None:
                yield "I-MS-6: a reply is left in the outbox"
        if lost := sorted(set(owed) - set(self.answered) - set(self.parked_sids)):
            yield f"I-MS-1: neither answered nor parked: {lost}"

    def find_wrongly_parked(self) -> Iterator[str]:
        """Yield batches that were parked although it was known whether the reply was sent."""
        for batch in self.parked:
            unclear = isinstance(batch.outbox, SendingReply | UnclearReply)
            if batch.reason != _UNKNOWN_SEND or not unclear:
                yield f"I-MS-1: {batch.sids} are parked: {batch.reason}"


def find_sids(text: str) -> list[str]:
    """Return the sids of the messages that a text shows."""
    return list(dict.fromkeys(_SID.findall(text)))
