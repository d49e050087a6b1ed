"""Compare the customer's messages with the history, the replies and the effect log."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast.cli.demo.chat.customer import BATCHES, CustomerMessage
from holdfast.cli.demo.screen import DemoReport, ReportRow


@dataclass(frozen=True, slots=True)
class ChatReport(DemoReport):
    """The accounting report of the chat scenario."""

    terms: ClassVar[str] = (
        "A message is answered if a sent reply quotes it. Replies are counted in the outbox "
        "folder; the writer and the sender record their effects separately."
    )
    messages: int
    in_history: int  # exactly once
    replies: int  # in the outbox folder
    recorded: int  # replies in the history
    asked: int  # calls of the writer
    answered_twice: int
    lost: int
    staged_left: int
    locks_left: int
    parked: int
    workers_killed: int
    taken_over: int  # prepared replies that were taken over
    delivered_again: int

    def list_rows(self) -> list[ReportRow]:
        """Return the lines of the report."""
        total, batches = self.messages, BATCHES
        quick_and_late = "three quick ones, and one too late for their batch"
        both = "one to the three, one to the late message"
        rows = [
            ("messages", total, total, quick_and_late),
            ("in the history", self.in_history, total, "each exactly once"),
            ("replies", self.replies, batches, both),
            ("recorded replies", self.recorded, self.replies, "in the history"),
            ("writer calls", self.asked, batches, "none for a prepared reply"),
            ("answered twice", self.answered_twice, 0, "quoted in two replies"),
            ("lost", self.lost, 0, "in no reply"),
            ("left staged", self.staged_left, 0, ""),
            ("left locked", self.locks_left, 0, ""),
            ("parked", self.parked, 0, "waiting for an operator"),
            ("workers killed", self.workers_killed, 1, "with SIGKILL, before the send"),
            ("taken over", self.taken_over, 1, "prepared replies that were sent"),
            ("delivered again", self.delivered_again, 1, "an answered message, without effect"),
        ]
        return [
            ReportRow(label, count, note, wrong=count != expected)
            for label, count, expected, note in rows
        ]


def make_report(
    messages: Sequence[CustomerMessage],
    history: Sequence[str],
    sent: Sequence[str],
    **counts: int,
) -> ChatReport:
    """Return the report.

    `messages` holds each message once, even if delivered twice, `history` the sids of all
    batches, with repetitions, and `sent` the text of every reply that the sender got. The
    other counts are taken as they were read.
    """
    recorded = Counter(history)
    answers = {message.sid: sum(message.text in text for text in sent) for message in messages}
    twice = {sid for sid, count in [*answers.items(), *recorded.items()] if count > 1}
    return ChatReport(
        messages=len(messages),
        in_history=sum(recorded[message.sid] == 1 for message in messages),
        answered_twice=len(twice),
        lost=sum(not count for count in answers.values()),
        **counts,
    )
