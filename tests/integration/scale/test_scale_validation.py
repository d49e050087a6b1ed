"""The calls that the scale study counts are those of the code."""

from collections import Counter
from typing import Any

import pytest
from bench.scale.counting import CountedChat, count_chat_flows, count_job_flows
from bench.scale.measuring import read_measurements

from holdfast.chat.dynamodb.tables import define_tables, tables_from_prefix
from support.dynamodb.service import start_service


@pytest.mark.nightly
def test_the_stored_flows_are_those_of_the_code() -> None:
    """By day the next test and the costs of the deploy page notice most changes."""
    counted = {**count_chat_flows(), **count_job_flows()}
    assert counted == read_measurements()["flows"], "run `make scale-measure`"


def test_a_mix_of_turns_makes_the_calls_of_its_flows() -> None:
    flows = read_measurements()["flows"]
    expected: Counter[str] = Counter()
    real: Counter[str] = Counter()
    with start_service(define_tables(tables_from_prefix())) as client:
        chat = CountedChat(client)
        chat.answer()  # creates the conversation
        chat.delete_done()
        for fragments, last_seconds_ago in ((1, 10), (3, 10), (2, 1), (5, 0.5)):
            with chat.count(real):
                _run_turn(chat, fragments, last_seconds_ago)
            expected.update(_select_calls(flows["stage_first"]))
            for _ in range(fragments - 1):
                expected.update(_select_calls(flows["stage_more"]))
            if last_seconds_ago < chat.policy.quiet_seconds:
                expected.update(_select_calls(flows["turn_typing"]))
            expected.update(_select_calls(flows["turn"]))
    assert _select_calls(real) == dict(expected)


def _run_turn(chat: CountedChat, fragments: int, last_seconds_ago: float) -> None:
    window = chat.policy.window_seconds
    chat.stage()
    chat.clock.advance(window - last_seconds_ago)
    for _ in range(fragments - 1):
        chat.stage()
    chat.clock.advance(last_seconds_ago)
    chat.handle(chat.receive())
    if last_seconds_ago < chat.policy.quiet_seconds:
        chat.clock.advance(chat.policy.quiet_seconds)
        chat.handle(chat.receive())


def _select_calls(flow: Any) -> dict[str, float]:
    return {name: n for name, n in flow.items() if name.partition(".")[2][:1].isupper() and n}
