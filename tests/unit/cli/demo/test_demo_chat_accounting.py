"""The report of the demo's chat scenario: any fault makes the totals differ."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.demo.chat.accounting import (
    ChatInterventions,
    ChatObservations,
    ChatReport,
    make_report,
)
from holdfast.cli.demo.chat.customer import LATE, QUICK
from holdfast.cli.demo.chat.effect_log import EffectEntry, EffectLog

MESSAGES = [*QUICK, LATE]
FIRST = "You said: " + "\n".join(line.text for line in QUICK)
SECOND = f"You said: {LATE.text}"
OBSERVED = ChatObservations(
    history=[line.sid for line in MESSAGES],
    recorded=2,
    replies=2,
    sent=[FIRST, SECOND],
    asked=2,
    staged=0,
    locks=0,
    parked=0,
)
INTERVENTIONS = ChatInterventions(workers_killed=1, taken_over=1, delivered_again=1)


def report(
    observed: ChatObservations = OBSERVED, interventions: ChatInterventions = INTERVENTIONS
) -> ChatReport:
    return make_report(MESSAGES, observed, interventions)


def test_the_totals_of_a_good_conversation_match() -> None:
    right = report()
    assert right.totals_match
    assert (right.messages, right.in_history, right.lost, right.answered_twice) == (4, 4, 0, 0)
    assert not any(row.wrong for row in right.list_rows())


def test_no_message_of_the_scenario_is_part_of_another() -> None:
    """Otherwise the report could not tell which message a reply answers."""
    assert not [(a, b) for a in MESSAGES for b in MESSAGES if a is not b and a.text in b.text]


WRONG = {
    "in the history": [report(replace(OBSERVED, history=[line.sid for line in QUICK]))],
    "replies": [
        report(replace(OBSERVED, replies=1)),
        report(replace(OBSERVED, replies=3, recorded=3)),
    ],
    "recorded replies": [report(replace(OBSERVED, recorded=1))],
    "writer calls": [report(replace(OBSERVED, asked=3)), report(replace(OBSERVED, asked=1))],
    "answered twice": [
        report(replace(OBSERVED, sent=[FIRST, FIRST, SECOND])),
        report(replace(OBSERVED, history=[*OBSERVED.history, LATE.sid])),
    ],
    "lost": [report(replace(OBSERVED, sent=[FIRST]))],
    "left staged": [report(replace(OBSERVED, staged=1))],
    "left locked": [report(replace(OBSERVED, locks=1))],
    "parked": [report(replace(OBSERVED, parked=1))],
    "workers killed": [report(interventions=replace(INTERVENTIONS, workers_killed=0))],
    "taken over": [report(interventions=replace(INTERVENTIONS, taken_over=0))],
    "delivered again": [report(interventions=replace(INTERVENTIONS, delivered_again=0))],
}


@pytest.mark.parametrize("label", WRONG)
def test_a_wrong_count_makes_the_totals_differ_and_is_marked(label: str) -> None:
    for wrong in WRONG[label]:
        assert not wrong.totals_match
        assert label in {row.label for row in wrong.list_rows() if row.wrong}


def test_effects_are_read_as_recorded_without_an_incomplete_last_line(tmp_path: Path) -> None:
    effects = EffectLog(tmp_path)
    assert effects.read_entries() == []
    effects.record("asked", "one\ntwo")
    effects.record("held")
    with (tmp_path / "chat-effects.jsonl").open("a") as file:
        file.write('{"kind": "se')
    assert effects.read_entries() == [EffectEntry("asked", "one\ntwo"), EffectEntry("held")]
    assert effects.read_texts("asked") == ["one\ntwo"]
