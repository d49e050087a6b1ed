"""docs/scale.md is what the code writes from the stored results."""

import json

from bench.scale.__main__ import RESULTS
from bench.scale.faults import list_faults
from bench.scale.page import PAGE, render
from bench.scale.study import ACTIVE_JOBS, MESSAGES_PER_DAY, TURNS_PER_MINUTE


def test_the_page_is_what_the_code_writes() -> None:
    written = render(json.loads(RESULTS.read_text()))
    assert PAGE.read_text() == written, "run `make scale`, or `python -m bench.scale --page`"


def test_the_stored_results_are_those_of_the_whole_week() -> None:
    week = json.loads(RESULTS.read_text())["week"]
    assert (week["load"], week["days"]) == (1.0, 7.0)
    assert (MESSAGES_PER_DAY, ACTIVE_JOBS, TURNS_PER_MINUTE) == (1_000_000, 10_000, 1_000)
    assert [fault["name"] for fault in week["faults"]] == [f.name for f in list_faults()]
    for part in ("work", "export", "chat"):
        assert (week["final"][part]["lost"], week["final"][part]["counted_twice"]) == (0, 0)
