"""The demo's acts: any fault makes the totals differ, and the misbehaving tasks are there."""

import io
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import queue_act
from chat_act import MESSAGES
from harness import Screen, Stage, Total
from queue_act import make_tasks

from holdfast import AnyMessage, open_queue


def find_wrong(totals: Sequence[Total]) -> set[str]:
    return {total.label for total in totals if total.is_wrong}


GOOD_QUEUE: dict[str, Any] = {
    "pushed": ["a", "b"],
    "completed": [("a", 1)],
    "dead": [("b", 3)],
    "effects": [("a", 1)],
}


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ({}, set()),
        ({"dead": []}, {"pushed", "lost"}),
        ({"effects": []}, {"lost"}),
        ({"completed": [("a", 2)]}, {"lost"}),  # the effect is that of an overtaken attempt
        ({"completed": [("a", 2)], "effects": [("a", 1), ("a", 2)]}, set()),
        ({"effects": [("a", 1), ("a", 1)]}, {"done twice"}),
        ({"completed": [("a", 1), ("a", 1)]}, {"pushed", "done twice"}),
        ({"dead": [("b", 3), ("a", 1)]}, {"pushed", "done twice"}),
        ({"pushed": ["a"]}, {"pushed"}),
    ],
)
def test_a_fault_of_a_queue_makes_the_totals_differ(
    fault: dict[str, Any], wrong: set[str]
) -> None:
    assert find_wrong(queue_act.list_totals(**(GOOD_QUEUE | fault))) == wrong


def test_no_message_is_part_of_another() -> None:
    """Otherwise the totals could not tell which message a reply answers."""
    texts = MESSAGES.values()
    assert not [(a, b) for a in texts for b in texts if a is not b and a in b]


def test_every_number_of_tasks_includes_the_misbehaving_ones() -> None:
    for size in (30, 300):
        habits = [task.habit for task in make_tasks(size)]
        assert len(habits) == size
        assert (habits.count("hangs"), habits.count("poison")) == (1, 1)
        assert habits.count("long") >= 2


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "place"), [("file", "queues/demo/enrich/pending"), ("sqlite", "queues.db")]
)
def test_an_act_has_its_queue_and_folds_lines_that_are_longer_than_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    for name, value in {"COLUMNS": "60", "LINES": "60", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "50% of it"
    words = [f"word{number}" for number in range(20)]
    with ExitStack() as resources:
        act = queue_act.QueueAct(Stage(folder, kind, {}, resources, lambda: None))
        with open_queue(act.url, env={}) as queue:
            queue.push(AnyMessage())
        assert (folder / place).exists()
        screen = Screen(terminal := Terminal(), "a title")
        assert screen.live is not None
        with screen.live:
            screen.report(" ".join(words))
            screen.draw(act)
    shown = terminal.getvalue()
    assert [word for word in words if word in shown] == words
    assert "…" not in shown
