"""The books of the demo's conversation: whatever is wrong unbalances them."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.demo.chat.books import ChatBooks, ChatFindings, ChatInterventions, balance
from holdfast.cli.demo.chat.customer import LATE, QUICK
from holdfast.cli.demo.chat.ledger import EffectEntry, EffectLog

LINES = [*QUICK, LATE]
FIRST = "You said: " + "\n".join(line.text for line in QUICK)
SECOND = f"You said: {LATE.text}"
FOUND = ChatFindings(
    history=[line.sid for line in LINES],
    recorded=2,
    replies=2,
    sent=[FIRST, SECOND],
    asked=2,
    staged=0,
    locks=0,
    parked=0,
)
DEEDS = ChatInterventions(workers_killed=1, taken_over=1, delivered_again=1)


def books(found: ChatFindings = FOUND, deeds: ChatInterventions = DEEDS) -> ChatBooks:
    return balance(LINES, found, deeds)


def test_a_conversation_that_went_right_balances() -> None:
    right = books()
    assert right.balance
    assert (right.messages, right.in_history, right.lost, right.answered_twice) == (4, 4, 0, 0)
    assert not any(row.wrong for row in right.rows())


def test_no_message_of_the_play_is_part_of_another() -> None:
    """Or the books could not tell which of them a reply answers."""
    assert not [(a, b) for a in LINES for b in LINES if a is not b and a.text in b.text]


WRONG = {
    "in the history": [books(replace(FOUND, history=[line.sid for line in QUICK]))],
    "replies": [books(replace(FOUND, replies=1)), books(replace(FOUND, replies=3, recorded=3))],
    "of them recorded": [books(replace(FOUND, recorded=1))],
    "writer asked": [books(replace(FOUND, asked=3)), books(replace(FOUND, asked=1))],
    "answered twice": [
        books(replace(FOUND, sent=[FIRST, FIRST, SECOND])),
        books(replace(FOUND, history=[*FOUND.history, LATE.sid])),
    ],
    "lost": [books(replace(FOUND, sent=[FIRST]))],
    "staged, left": [books(replace(FOUND, staged=1))],
    "locks, left": [books(replace(FOUND, locks=1))],
    "parked": [books(replace(FOUND, parked=1))],
    "workers killed": [books(deeds=replace(DEEDS, workers_killed=0))],
    "taken over": [books(deeds=replace(DEEDS, taken_over=0))],
    "delivered again": [books(deeds=replace(DEEDS, delivered_again=0))],
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_unbalances_the_books_and_is_marked(what: str) -> None:
    for wrong in WRONG[what]:
        assert not wrong.balance
        assert what in {row.what for row in wrong.rows() if row.wrong}


def test_deeds_are_read_as_they_were_noted_and_a_growing_one_is_left(tmp_path: Path) -> None:
    ledger = EffectLog(tmp_path)
    assert ledger.entries() == []
    ledger.note("asked", "one\ntwo")
    ledger.note("held")
    with (tmp_path / "chat-deeds.jsonl").open("a") as file:
        file.write('{"deed": "se')
    assert ledger.entries() == [EffectEntry("asked", "one\ntwo"), EffectEntry("held")]
    assert ledger.texts("asked") == ["one\ntwo"]
