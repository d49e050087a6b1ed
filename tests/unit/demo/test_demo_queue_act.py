"""The queue act of the demo: its tasks, its effect log, and a report that shows any fault."""

from pathlib import Path

import pytest

from holdfast import AnyMessage, open_queue
from holdfast.demo.act import QueueKind
from holdfast.demo.effect_log import EffectLog
from holdfast.demo.queue_act import Attempt, QueueAct, make_report
from holdfast.demo.queue_tasks import make_tasks


def attempts(*ids: str, attempt: int = 1) -> list[Attempt]:
    return [Attempt(id, attempt) for id in ids]


@pytest.mark.parametrize(
    ("kind", "place"), [("file", "queues/demo/enrich/pending"), ("sqlite", "queues.db")]
)
def test_an_act_runs_on_the_chosen_kind_of_queue(tmp_path: Path, kind: str, place: str) -> None:
    folder = tmp_path / "50% of it"
    with open_queue(QueueAct.make_queue_url(folder, QueueKind(kind)), env={}) as queue:
        queue.push(AnyMessage())
        assert queue.name == "demo/enrich"
    assert (folder / place).exists()


def test_the_totals_of_a_good_run_match() -> None:
    report = make_report(["a", "b"], attempts("a"), attempts("b", attempt=3), attempts("a"))
    assert report.to_json() == {
        "pushed": 2,
        "completed": 1,
        "dead_lettered": 1,
        "redelivered": 2,
        "fenced_off": 0,
        "lost": 0,
        "done_twice": 0,
        "totals_match": True,
    }


def test_a_task_that_is_settled_nowhere_is_lost() -> None:
    report = make_report(["a", "b"], attempts("a"), [], attempts("a"))
    assert report.to_json()["lost"] == 1
    assert not report.totals_match


def test_a_task_that_was_completed_without_its_effect_is_lost() -> None:
    report = make_report(["a"], attempts("a", attempt=2), [], attempts("a", attempt=1))
    counts = report.to_json()
    assert (counts["lost"], counts["fenced_off"]) == (1, 1)
    assert not report.totals_match


def test_two_effects_of_the_completing_attempt_are_done_twice() -> None:
    report = make_report(["a"], attempts("a"), [], attempts("a", "a"))
    assert report.to_json()["done_twice"] == 1
    assert not report.totals_match


@pytest.mark.parametrize(
    ("completed", "dead"), [(["a"], ["a"]), (["a", "a"], [])], ids=["two places", "twice"]
)
def test_a_task_settled_twice_is_done_twice(completed: list[str], dead: list[str]) -> None:
    report = make_report(["a"], attempts(*completed), attempts(*dead), attempts("a"))
    assert report.to_json()["done_twice"] == 1
    assert not report.totals_match


def test_the_effect_of_an_overtaken_attempt_is_fenced_off() -> None:
    both = [*attempts("a", attempt=1), *attempts("a", attempt=2)]
    report = make_report(["a"], attempts("a", attempt=2), [], both)
    counts = report.to_json()
    assert (counts["fenced_off"], counts["done_twice"], counts["redelivered"]) == (1, 0, 1)
    assert report.totals_match


def test_a_task_that_was_not_pushed_makes_the_totals_differ() -> None:
    both = attempts("a", "ghost")
    assert not make_report(["a"], both, [], both).totals_match


def test_effects_are_read_as_recorded_without_an_incomplete_last_line(tmp_path: Path) -> None:
    path = tmp_path / "effects"
    effects = EffectLog(path)
    assert effects.read() == []
    effects.record(kind="asked", text="one\ntwo")
    effects.record(id="b", attempt=2, fence=3)
    with path.open("a") as file:
        file.write('{"kind": "se')
    assert effects.read() == [
        {"kind": "asked", "text": "one\ntwo"},
        {"id": "b", "attempt": 2, "fence": 3},
    ]


def test_every_number_of_tasks_includes_the_misbehaving_ones() -> None:
    for size in (30, 300):
        habits = [task.habit for task in make_tasks(size)]
        assert len(habits) == size
        assert (habits.count("hangs"), habits.count("poison")) == (1, 1)
        assert habits.count("long") >= 2
