"""`holdfast demo`: it runs for real, and its books can fail."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_kit import clean_env, command, eventually

from holdfast.cli.demo.books import Books, Effect, Ended, balance, read_ledger
from holdfast.cli.demo.tasks import HANGS, LEDGER, cast, note_effect

DEMO_SECONDS = 180.0  # a loaded machine needs longer than half a minute


class Demo:
    """A demo whose temporary folder is ours to look at."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            command("demo", *options),
            env=clean_env(TMPDIR=str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        """Workers and their children, told by the ledger in their environment."""
        mark = f"{LEDGER}={self.folder}".encode()
        if not Path("/proc").is_dir():
            return []
        return [int(p.name) for p in Path("/proc").iterdir() if mark in _environment(p)]

    def left_behind(self) -> list[object]:
        return [*self.processes(), *self.folder.iterdir()]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes() if process.name.isdigit() else b""
    except OSError:
        return b""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path, "--tasks=60", "--workers=3", "--json")
    yield demo
    demo.process.kill()
    demo.process.communicate()
    for pid in demo.processes():
        os.kill(pid, signal.SIGKILL)


def test_the_books_balance_after_a_kill_and_a_hang(small: Demo) -> None:
    out, story = small.process.communicate(timeout=DEMO_SECONDS)
    assert small.process.returncode == 0, story
    books = json.loads(out)
    assert books["balance"] is True
    assert (books["pushed"], books["completed"], books["dead_lettered"]) == (60, 59, 1)
    assert (books["lost"], books["done_twice"]) == (0, 0)
    assert books["redelivered"] >= 3  # the hang, the flaky ones, the orphans
    assert "killed with SIGKILL, holding company-" in story
    assert f"the watchdog ended the handler of {HANGS}" in story
    assert "all it held is in other hands" in story
    eventually(lambda: small.left_behind() == [])


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_leaves_nothing_behind_when_it_is_interrupted(
    small: Demo, number: signal.Signals
) -> None:
    eventually(lambda: len(small.processes()) > 6)  # workers, and handlers at work
    small.process.send_signal(number)
    assert small.process.wait(DEMO_SECONDS) == 130
    eventually(lambda: small.left_behind() == [])


# -- the books themselves


def ended(*ids: str, attempt: int = 1) -> list[Ended]:
    return [Ended(id, attempt) for id in ids]


def effects(*ids: str, attempt: int = 1) -> list[Effect]:
    return [Effect(id, attempt) for id in ids]


def test_what_went_right_balances() -> None:
    books = balance(["a", "b"], ended("a"), ended("b", attempt=3), effects("a"))
    assert books == Books(2, 1, 1, redelivered=2, fenced_off=0, lost=0, done_twice=0)
    assert books.balance


def test_a_task_that_is_settled_nowhere_is_lost() -> None:
    books = balance(["a", "b"], ended("a"), [], effects("a"))
    assert books.lost == 1
    assert not books.balance


def test_a_task_that_was_completed_without_its_effect_is_lost() -> None:
    books = balance(["a"], ended("a", attempt=2), [], effects("a", attempt=1))
    assert (books.lost, books.fenced_off) == (1, 1)
    assert not books.balance


def test_two_effects_of_the_completing_attempt_are_done_twice() -> None:
    books = balance(["a"], ended("a"), [], effects("a", "a"))
    assert books.done_twice == 1
    assert not books.balance


def test_a_task_settled_in_two_places_is_done_twice() -> None:
    assert balance(["a"], ended("a"), ended("a"), effects("a")).done_twice == 1
    assert balance(["a"], ended("a", "a"), [], effects("a")).done_twice == 1


def test_the_effect_of_an_overtaken_attempt_is_fenced_off() -> None:
    both = [*effects("a", attempt=1), *effects("a", attempt=2)]
    books = balance(["a"], ended("a", attempt=2), [], both)
    assert (books.fenced_off, books.done_twice, books.redelivered) == (1, 0, 1)
    assert books.balance


def test_a_task_nobody_pushed_unbalances_the_books() -> None:
    assert not balance(["a"], ended("a", "ghost"), [], effects("a", "ghost")).balance


def test_effects_are_read_as_they_were_written(tmp_path: Path) -> None:
    ledger = tmp_path / "effects"
    assert read_ledger(ledger) == []
    note_effect(str(ledger), "a", 1, 1)
    note_effect(str(ledger), "b", 2, 3)
    assert read_ledger(ledger) == [Effect("a", 1), Effect("b", 2)]


def test_the_cast_has_its_troublemakers_whatever_its_size() -> None:
    for size in (30, 300):
        habits = [task.habit for task in cast(size)]
        assert len(habits) == size
        assert (habits.count("hangs"), habits.count("poison")) == (1, 1)
        assert habits.count("long") >= 2
