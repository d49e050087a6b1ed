"""examples/watchdog.py works the same in a folder and on SQS; only the URL differs."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import watchdog_processing
from examples import watchdog

from support.cli.commands import clean_env
from support.paths import ROOT
from support.sqs.server import Sqs
from support.waiting import WAIT_TIMEOUT_SECONDS

if TYPE_CHECKING:  # because pytest must load that module itself
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

TITLE = re.compile(r"'(Task #\d+)'")


@pytest.fixture
def sqs(ministack: "Ministack", monkeypatch: pytest.MonkeyPatch) -> Sqs:
    sqs = Sqs(ministack)
    for name, value in sqs.env.items():
        monkeypatch.setenv(name, value)
    return sqs


@pytest.fixture(params=["folder", "sqs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "demo" / "watchdog")
    sqs: Sqs = request.getfixturevalue("sqs")
    return f"sqs:{sqs.new_queue(redrive_after=60)}"


def run_example(*words: str, **env: str) -> tuple[int, list[str], str]:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "watchdog.py"), *words],
        env=clean_env(**env),
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_SECONDS,
        check=False,
    )
    return ran.returncode, ran.stdout.splitlines(), ran.stderr


def titles(lines: list[str], words: str) -> Counter[str]:
    return Counter(TITLE.findall("\n".join(line for line in lines if words in line)))


@pytest.mark.requirement("R003-018", "R003-024", "R003-028", "R003-029", "R003-045")
def test_the_unchanged_example_completes_every_task_once_whatever_the_dice_decide(
    url: str,
) -> None:
    """Three tasks, and the end when three are complete."""
    code, lines, err = run_example(url, "--look", "0.05")
    assert code == 0, err
    assert lines[0].startswith("sent 3 messages to the queue")
    three = {f"Task #{n}": 1 for n in range(3)}
    assert titles(lines, "is complete!") == three
    # Every attempt began with a message and a start, however it ended.
    ends = ("is complete!", "to be tried again", "lost its lease")
    tries = sum((titles(lines, words) for words in ends), Counter())
    assert titles(lines, "got ") == titles(lines, "starting to process") == tries


@pytest.mark.requirement("R003-018")
def test_as_many_tasks_are_sent_as_the_example_was_given(tmp_path: Path) -> None:
    """The seed overwrote the parameter by three."""
    code, lines, err = run_example(str(tmp_path / "d" / "w"), "--tasks", "12", "--look", "0.02")
    assert code == 0, err
    assert lines[0].startswith("sent 12 messages")
    assert len(titles(lines, "is complete!")) == 12


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "pids"
    monkeypatch.setenv(watchdog_processing.PIDS, str(path))
    return path


@pytest.mark.requirement(
    "R003-004",
    "R003-009",
    "R003-010",
    "R003-011",
    "R003-030",
    "R003-035",
    "R003-036",
    "R003-037",
    "R003-040",
    "R003-044",
    "R003-045",
    "R003-046",
)
def test_slow_tasks_are_kept_and_failed_tasks_are_retried(
    url: str, pids: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The seed's story, with the dice replaced by other hooks."""
    progress = watchdog.run(
        url, 3, watchdog.Watch(watchdog_processing.scripted, look_seconds=0.5)
    )
    lines = capfd.readouterr().out.splitlines()
    assert progress.all_complete
    assert len(progress.complete) == 3

    assert titles(lines, "still in progress").keys() == {"Task #0"}
    assert titles(lines, "still in progress")["Task #0"] >= 2
    assert titles(lines, "is held for another")["Task #0"] >= 1
    assert titles(lines, "got ")["Task #0"] == 1  # no other worker got it meanwhile

    story = [line for line in lines if "'Task #1'" in line]
    assert [line.split(" 'Task #1'")[0] for line in story] == [
        "got", "starting to process", "processing of",
        "got", "starting to process", "processing of",
    ]  # fmt: skip
    assert "to be tried again" in story[2]
    assert "is complete!" in story[5]

    workers = {int(pid) for pid in pids.read_text().split()}
    assert os.getpid() not in workers  # the watchdog and the work are in different processes


def test_a_task_that_never_succeeds_ends_as_a_dead_letter_and_so_does_the_run(
    tmp_path: Path,
) -> None:
    """WD-03, WD-09: the example does not wait forever for a task that cannot complete."""
    watch = watchdog.Watch(watchdog_processing.broken)
    progress = watchdog.run(
        str(tmp_path / "d" / "w"), 2, watch, max_attempts=1, limit_seconds=WAIT_TIMEOUT_SECONDS
    )
    assert (len(progress.dead), progress.all_complete) == (2, False)


def test_a_task_that_vanished_does_not_keep_the_example_running(tmp_path: Path) -> None:
    """WD-03: a redrive policy of SQS moves messages without any notification."""
    watch = watchdog.Watch(watchdog_processing.broken)
    progress = watchdog.run(str(tmp_path / "d" / "w"), 1, watch, limit_seconds=0.5)
    assert not progress.over


def test_no_tasks_are_complete_at_once(tmp_path: Path) -> None:
    assert watchdog.run(str(tmp_path / "d" / "w"), 0).all_complete


def test_a_missing_queue_is_reported_in_one_line(sqs: Sqs) -> None:
    code, lines, err = run_example("sqs:missing-queue", **sqs.env)
    assert (code, lines) == (2, [])
    assert err.count("\n") == 1
    assert "there is no such queue" in err


@pytest.mark.requirement("R003-016")
def test_the_example_names_no_vendor() -> None:
    assert not re.search("boto|aws", (ROOT / "examples" / "watchdog.py").read_text(), re.I)
