"""The report of the demo's chat act: any fault makes the totals differ."""

from typing import Any

import pytest

from holdfast.demo.chat_act import LATE, MESSAGES, QUICK, make_report
from holdfast.demo.screen import DemoReport

FIRST = "You said: " + "\n".join(line.text for line in QUICK)
SECOND = f"You said: {LATE.text}"
OBSERVED: dict[str, Any] = {
    "history": [line.sid for line in MESSAGES],
    "sent": [FIRST, SECOND],
    "recorded": 2,
    "replies": 2,
    "asked": 2,
    "staged_left": 0,
    "locks_left": 0,
    "parked": 0,
    "workers_killed": 1,
    "taken_over": 1,
    "delivered_again": 1,
}


def report(**observed: Any) -> DemoReport:
    return make_report(**(OBSERVED | observed))


def test_the_totals_of_a_good_conversation_match() -> None:
    right = report()
    assert right.totals_match
    counts = right.to_json()
    assert (counts["messages"], counts["in_history"]) == (4, 4)
    assert (counts["lost"], counts["answered_twice"]) == (0, 0)
    assert not any(row.wrong for row in right.rows)


def test_no_message_of_the_scenario_is_part_of_another() -> None:
    """Otherwise the report could not tell which message a reply answers."""
    assert not [(a, b) for a in MESSAGES for b in MESSAGES if a is not b and a.text in b.text]


WRONG = {
    "in the history": [report(history=[line.sid for line in QUICK])],
    "replies": [
        report(replies=1),
        report(replies=3, recorded=3),
    ],
    "recorded replies": [report(recorded=1)],
    "writer calls": [report(asked=3), report(asked=1)],
    "answered twice": [
        report(sent=[FIRST, FIRST, SECOND]),
        report(history=[*OBSERVED["history"], LATE.sid]),
    ],
    "lost": [report(sent=[FIRST])],
    "left staged": [report(staged_left=1)],
    "left locked": [report(locks_left=1)],
    "parked": [report(parked=1)],
    "workers killed": [report(workers_killed=0)],
    "taken over": [report(taken_over=0)],
    "delivered again": [report(delivered_again=0)],
}


@pytest.mark.parametrize("label", WRONG)
def test_a_wrong_count_makes_the_totals_differ_and_is_marked(label: str) -> None:
    for wrong in WRONG[label]:
        assert not wrong.totals_match
        assert label in {row.label for row in wrong.rows if row.wrong}
