"""`holdfast work` shows why a handler fails, and how to learn more."""

import json
import os
import pty
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.commands import clean_env, read_terminal, real, start
from support.cli.work_folder import WorkFolder


@pytest.fixture
def place(tmp_path: Path) -> Iterator[WorkFolder]:
    place = WorkFolder(tmp_path)
    yield place
    place.close()


def read_failure(place: WorkFolder, *options: str) -> dict[str, str]:
    """Run a handler that fails once, and return the line of its dead letter."""
    place.push("a")
    ran = place.work("tasks:fail", "--max-attempts=1", "--log-format=json", *options)
    lines = map(json.loads, ran.err.splitlines())
    [failure] = [line for line in lines if line["event"] == "dead_lettered"]
    return dict(failure)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_json_lines_have_the_traceback(place: WorkFolder, isolation: str) -> None:
    failure = read_failure(place, f"--isolation={isolation}")
    assert "in fail" in failure["traceback"]
    assert "ValueError: no such luck" in failure["traceback"]


def test_the_command_that_is_named_explains_the_failure(place: WorkFolder) -> None:
    program, *words = read_failure(place)["explain"].split()
    assert program == "holdfast"
    assert "no such luck" in real(place.folder, *words).out


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_tracebacks_can_be_turned_off(place: WorkFolder, isolation: str) -> None:
    failure = read_failure(place, "--no-tracebacks", f"--isolation={isolation}")
    assert "traceback" not in failure
    assert "no such luck" not in str(failure)
    assert "ValueError" in failure["reason"]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_terminal_shows_the_traceback_and_the_command(
    place: WorkFolder, isolation: str
) -> None:
    """And does not break the command into lines that cannot be copied."""
    place.push("a")
    terminal, inside = pty.openpty()
    worker = start(
        place.folder, "work", place.url, "tasks:fail", "--max-attempts=1", "--until-empty",
        f"--isolation={isolation}", stderr=inside, env=clean_env(COLUMNS="40"),
    )  # fmt: skip
    os.close(inside)
    shown = read_terminal(terminal).decode().replace("\r\n", "\n")
    worker.communicate()
    assert worker.returncode == 0
    tasks = place.folder / "tasks.py"
    expected = rf"""dead lettered a: failed once, last: ValueError \(attempt 1\)
    Traceback \(most recent call last\):
      File "{re.escape(str(tasks))}", line \d+, in fail
        raise ValueError\("no such luck"\)
    ValueError: no such luck
  holdfast explain {re.escape(place.url)} a
"""
    assert re.search(expected, shown), shown
