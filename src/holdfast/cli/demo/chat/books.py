"""The books of a conversation: what the customer wrote against what became of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.cli.demo.chat.customer import BATCHES, CustomerLine
from holdfast.cli.demo.stage import Row

_DEFINITION = (
    "Answered: the message stands in a reply that went out. Replies are counted in the "
    "outbox folder; the writer and the sender keep a list of their own of what they did."
)


@dataclass(frozen=True, slots=True)
class ChatFindings:
    """What was there in the end, and where the demo looked for it."""

    history: Sequence[str]  # the sids of every batch in it, each as often as it is there
    recorded: int  # replies in the history
    replies: int  # in the outbox folder
    sent: Sequence[str]  # the text of every reply the sender was given
    asked: int  # of the writer
    staged: int
    locks: int
    parked: int


@dataclass(frozen=True, slots=True)
class ChatInterventions:
    """What the demo did on the way."""

    workers_killed: int
    taken_over: int  # replies found prepared
    delivered_again: int


@dataclass(frozen=True, slots=True)
class ChatBooks:
    messages: int
    in_history: int  # exactly once
    replies: int
    recorded: int
    asked: int
    answered_twice: int
    lost: int
    staged_left: int
    locks_left: int
    parked: int
    workers_killed: int
    taken_over: int
    delivered_again: int

    @property
    def balance(self) -> bool:
        return not any(row.wrong for row in self.rows())

    def rows(self) -> list[Row]:
        return [
            Row(
                "messages", self.messages, "three quick ones, and one too late for their reply"
            ),
            _just("in the history", self.in_history, self.messages, "each exactly once"),
            _just("replies", self.replies, BATCHES, "one to the three, one to the late one"),
            _just("of them recorded", self.recorded, self.replies, "in the history"),
            _just("writer asked", self.asked, BATCHES, "not again for what was prepared"),
            _just("answered twice", self.answered_twice, 0, "quoted in two replies"),
            _just("lost", self.lost, 0, "in no reply"),
            _just("staged, left", self.staged_left, 0),
            _just("locks, left", self.locks_left, 0),
            _just("parked", self.parked, 0, "waiting for a person"),
            _just("workers killed", self.workers_killed, 1, "with SIGKILL, before the send"),
            _just("taken over", self.taken_over, 1, "replies found prepared, and sent"),
            _just("delivered again", self.delivered_again, 1, "an answered message: no effect"),
        ]

    def definition(self) -> str:
        return _DEFINITION


def _just(what: str, count: int, right: int, why: str = "") -> Row:
    return Row(what, count, why, wrong=count != right)


def balance(
    lines: Sequence[CustomerLine], found: ChatFindings, deeds: ChatInterventions
) -> ChatBooks:
    """`lines`: what the customer wrote, each once, however often it was delivered."""
    recorded = Counter(found.history)
    answers = {line.sid: sum(line.text in text for text in found.sent) for line in lines}
    twice = {sid for sid, count in [*answers.items(), *recorded.items()] if count > 1}
    return ChatBooks(
        messages=len(lines),
        in_history=sum(recorded[line.sid] == 1 for line in lines),
        replies=found.replies,
        recorded=found.recorded,
        asked=found.asked,
        answered_twice=len(twice),
        lost=sum(not count for count in answers.values()),
        staged_left=found.staged,
        locks_left=found.locks,
        parked=found.parked,
        workers_killed=deeds.workers_killed,
        taken_over=deeds.taken_over,
        delivered_again=deeds.delivered_again,
    )
