"""examples/watchdog.py: the same story in a folder and on SQS, by changing one URL."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_kit import PATIENCE_SECONDS, clean_env
from examples import watchdog
from sqs_place import Server, Sqs

from workers import processing

ROOT = Path(__file__).parents[2]
TITLE = re.compile(r"'(Task #\d+)'")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def sqs(server: Server, monkeypatch: pytest.MonkeyPatch) -> Sqs:
    sqs = Sqs(server.url)
    for name, value in sqs.env.items():
        monkeypatch.setenv(name, value)
    return sqs


@pytest.fixture(params=["folder", "sqs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "demo" / "watchdog")
    sqs: Sqs = request.getfixturevalue("sqs")
    return f"sqs:{sqs.new_queue(redrive_after=60)}"


def played(*words: str, **env: str) -> tuple[int, list[str], str]:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "watchdog.py"), *words],
        env=clean_env(**env),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return ran.returncode, ran.stdout.splitlines(), ran.stderr


def titles(lines: list[str], words: str) -> Counter[str]:
    return Counter(TITLE.findall("\n".join(line for line in lines if words in line)))


def test_as_it_stands_every_task_is_completed_once_whatever_the_dice_say(url: str) -> None:
    """R003-018, R003-024, R003-045: three tasks, and the end when three are complete."""
    code, lines, err = played(url, "--look", "0.05")
    assert code == 0, err
    assert lines[0].startswith("sent 3 messages to the queue")
    three = {f"Task #{n}": 1 for n in range(3)}
    assert titles(lines, "is complete!") == three
    # Whatever an attempt ended with, it began with a message and a start.
    ends = ("is complete!", "to be tried again", "is not ours any more")
    tries = sum((titles(lines, words) for words in ends), Counter())
    assert titles(lines, "got ") == titles(lines, "starting to process") == tries


def test_the_number_of_tasks_asked_for_is_the_number_sent(tmp_path: Path) -> None:
    """D-12: the seed overwrote the parameter by three."""
    code, lines, err = played(str(tmp_path / "d" / "w"), "--tasks", "12", "--look", "0.02")
    assert code == 0, err
    assert lines[0].startswith("sent 12 messages")
    assert len(titles(lines, "is complete!")) == 12


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "pids"
    monkeypatch.setenv(processing.PIDS, str(path))
    return path


def test_what_takes_long_is_kept_and_what_fails_is_tried_again(
    url: str, pids: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """R003-045, R003-046: the seed's story, with the dice replaced by hooks of one's own."""
    books = watchdog.run(url, 3, watchdog.Watch(processing.scripted, look_seconds=0.5))
    lines = capfd.readouterr().out.splitlines()
    assert books.all_complete
    assert len(books.complete) == 3

    assert titles(lines, "still in progress").keys() == {"Task #0"}
    assert titles(lines, "still in progress")["Task #0"] >= 2
    assert titles(lines, "is held for another")["Task #0"] >= 1
    assert titles(lines, "got ")["Task #0"] == 1  # nobody else got it meanwhile

    story = [line for line in lines if "'Task #1'" in line]
    assert [line.split(" 'Task #1'")[0] for line in story] == [
        "got", "starting to process", "processing of",
        "got", "starting to process", "processing of",
    ]  # fmt: skip
    assert "to be tried again" in story[2]
    assert "is complete!" in story[5]

    workers = {int(pid) for pid in pids.read_text().split()}
    assert os.getpid() not in workers  # the watchdog is not where the work is


def test_a_task_that_never_succeeds_ends_as_a_dead_letter_and_so_does_the_run(
    tmp_path: Path,
) -> None:
    """WD-03, WD-09: nothing waits for ever for what cannot come."""
    watch = watchdog.Watch(processing.broken)
    books = watchdog.run(
        str(tmp_path / "d" / "w"), 2, watch, max_attempts=1, limit_seconds=PATIENCE_SECONDS
    )
    assert (len(books.dead), books.all_complete) == (2, False)


def test_a_task_that_vanished_does_not_keep_it_going_for_ever(tmp_path: Path) -> None:
    """WD-03: a redrive policy of SQS moves messages and tells nobody."""
    watch = watchdog.Watch(processing.broken)
    books = watchdog.run(str(tmp_path / "d" / "w"), 1, watch, limit_seconds=0.5)
    assert not books.over


def test_no_tasks_are_complete_at_once(tmp_path: Path) -> None:
    assert watchdog.run(str(tmp_path / "d" / "w"), 0).all_complete


def test_a_queue_that_is_not_there_is_one_line(sqs: Sqs) -> None:
    code, lines, err = played("sqs:nobody-made-it", **sqs.env)
    assert (code, lines) == (2, [])
    assert err.count("\n") == 1
    assert "there is no such queue" in err


def test_the_example_names_no_vendor() -> None:
    assert not re.search("boto|aws", (ROOT / "examples" / "watchdog.py").read_text(), re.I)
