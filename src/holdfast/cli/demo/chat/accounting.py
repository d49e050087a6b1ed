"""Compare the customer's messages with the history, the replies and the effect log."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.cli.demo.chat.customer import BATCHES, CustomerMessage
from holdfast.cli.demo.screen import ReportRow

_TERMS = (
    "A message is answered if a sent reply quotes it. Replies are counted in the outbox "
    "folder; the writer and the sender record their effects separately."
)


@dataclass(frozen=True, slots=True)
class ChatObservations:
    """The final state, as the demo read it."""

    history: Sequence[str]  # the sids of all batches, with repetitions
    recorded: int  # replies in the history
    replies: int  # in the outbox folder
    sent: Sequence[str]  # the text of every reply that the sender got
    asked: int  # calls of the writer
    staged: int
    locks: int
    parked: int


@dataclass(frozen=True, slots=True)
class ChatInterventions:
    """What the demo did."""

    workers_killed: int
    taken_over: int  # prepared replies that were taken over
    delivered_again: int


@dataclass(frozen=True, slots=True)
class ChatReport:
    """The accounting report of the chat scenario."""

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
    def totals_match(self) -> bool:
        """Return whether every count is as expected."""
        return not any(row.wrong for row in self.list_rows())

    def list_rows(self) -> list[ReportRow]:
        """Return the lines of the report."""
        return [
            ReportRow(
                "messages", self.messages, "three quick ones, and one too late for their batch"
            ),
            _expect("in the history", self.in_history, self.messages, "each exactly once"),
            _expect(
                "replies", self.replies, BATCHES, "one to the three, one to the late message"
            ),
            _expect("recorded replies", self.recorded, self.replies, "in the history"),
            _expect("writer calls", self.asked, BATCHES, "none for a prepared reply"),
            _expect("answered twice", self.answered_twice, 0, "quoted in two replies"),
            _expect("lost", self.lost, 0, "in no reply"),
            _expect("left staged", self.staged_left, 0),
            _expect("left locked", self.locks_left, 0),
            _expect("parked", self.parked, 0, "waiting for an operator"),
            _expect("workers killed", self.workers_killed, 1, "with SIGKILL, before the send"),
            _expect("taken over", self.taken_over, 1, "prepared replies that were sent"),
            _expect(
                "delivered again",
                self.delivered_again,
                1,
                "an answered message, without effect",
            ),
        ]

    def explain_terms(self) -> str:
        """Return what the labels mean."""
        return _TERMS


def _expect(label: str, count: int, expected: int, note: str = "") -> ReportRow:
    return ReportRow(label, count, note, wrong=count != expected)


def make_report(
    messages: Sequence[CustomerMessage],
    observed: ChatObservations,
    interventions: ChatInterventions,
) -> ChatReport:
    """Return the report. `messages` holds each message once, even if delivered twice."""
    recorded = Counter(observed.history)
    answers = {
        message.sid: sum(message.text in text for text in observed.sent) for message in messages
    }
    twice = {sid for sid, count in [*answers.items(), *recorded.items()] if count > 1}
    return ChatReport(
        messages=len(messages),
        in_history=sum(recorded[message.sid] == 1 for message in messages),
        replies=observed.replies,
        recorded=observed.recorded,
        asked=observed.asked,
        answered_twice=len(twice),
        lost=sum(not count for count in answers.values()),
        staged_left=observed.staged,
        locks_left=observed.locks,
        parked=observed.parked,
        workers_killed=interventions.workers_killed,
        taken_over=interventions.taken_over,
        delivered_again=interventions.delivered_again,
    )
