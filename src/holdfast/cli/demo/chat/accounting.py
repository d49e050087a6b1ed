"""Compare the customer's messages with the history, the replies and the effect log."""

from collections import Counter
from collections.abc import Sequence

from holdfast.cli.demo.chat.customer import BATCHES, CustomerMessage
from holdfast.cli.demo.screen import DemoReport, ReportRow

_TERMS = (
    "A message is answered if a sent reply quotes it. Replies are counted in the outbox "
    "folder; the writer and the sender record their effects separately."
)


def make_report(
    messages: Sequence[CustomerMessage],
    history: Sequence[str],
    sent: Sequence[str],
    **read: int,
) -> DemoReport:
    """Return the report.

    `messages` holds each message once, even if delivered twice, `history` the sids of all
    batches, with repetitions, and `sent` the text of every reply that the sender got.
    The other counts are taken as they were read.
    """
    batches, total = Counter(history), len(messages)
    once = sum(batches[message.sid] == 1 for message in messages)
    answers = {message.sid: sum(message.text in text for text in sent) for message in messages}
    twice = {sid for sid, count in [*answers.items(), *batches.items()] if count > 1}
    lost = sum(not count for count in answers.values())
    quick_and_late = "three quick ones, and one too late for their batch"
    both = "one to the three, one to the late message"
    killed, again = "with SIGKILL, before the send", "an answered message, without effect"
    rows = [
        ("messages", "messages", total, total, quick_and_late),
        ("in_history", "in the history", once, total, "each exactly once"),
        ("replies", "replies", read["replies"], BATCHES, both),
        ("recorded", "recorded replies", read["recorded"], read["replies"], "in the history"),
        ("asked", "writer calls", read["asked"], BATCHES, "none for a prepared reply"),
        ("answered_twice", "answered twice", len(twice), 0, "quoted in two replies"),
        ("lost", "lost", lost, 0, "in no reply"),
        ("staged_left", "left staged", read["staged_left"], 0, ""),
        ("locks_left", "left locked", read["locks_left"], 0, ""),
        ("parked", "parked", read["parked"], 0, "waiting for an operator"),
        ("workers_killed", "workers killed", read["workers_killed"], 1, killed),
        ("taken_over", "taken over", read["taken_over"], 1, "prepared replies that were sent"),
        ("delivered_again", "delivered again", read["delivered_again"], 1, again),
    ]
    return DemoReport(
        [
            ReportRow(key, label, count, note, wrong=count != expected)
            for key, label, count, expected, note in rows
        ],
        _TERMS,
    )
