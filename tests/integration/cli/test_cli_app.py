"""`holdfast work tasks:app`: real processes on SQLite and on files."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.cli.app_folder import AppFolder
from support.cli.commands import clean_env, real, require_one_line

SQLITE = "sqlite:FOLDER/work.db"
FILES = "FOLDER/data/acme/work"


@pytest.fixture(params=[SQLITE, FILES], ids=["sqlite", "files"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AppFolder]:
    place = AppFolder(tmp_path, request.param)
    yield place
    place.close()


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[AppFolder]:
    place = AppFolder(tmp_path, SQLITE)
    yield place
    place.close()


def test_one_worker_runs_all_tasks_each_in_its_isolation(place: AppFolder) -> None:
    place.push("greet", {"host": "example.com"})
    for number in range(3):
        place.push("isolated", number)
    place.push("gentle", name="a")
    ran = place.work("-c", "2")
    assert ran.code == 0, ran.err
    assert ran.json["completed"] == 5
    greeter = {line.split()[-1] for line in place.read_effects() if line.startswith("greet")}
    isolated = {line.split()[-1] for line in place.read_effects() if line.startswith("iso")}
    assert len(greeter) == 1
    assert greeter & isolated == set()


def test_results_are_kept_in_a_database(sqlite_place: AppFolder) -> None:
    place = sqlite_place
    greeted = place.push("greet", {"host": "example.com"}, times=2)
    isolated = place.push("isolated", 7)
    assert place.work().json["completed"] == 2
    assert place.result(greeted) == {"host": "example.com", "times": 2}
    assert place.result(isolated) == [7, 1]
    assert real(place.folder, "purge", place.url, "--older-than", "0s").code == 0
    assert place.result(greeted) is None
    with closing(sqlite3.connect(place.folder / "work.db")) as database:
        assert database.execute("SELECT count(*) FROM results").fetchone() == (0,)


def test_the_environment_alone_chooses_the_queue(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "from holdfast import Holdfast\napp = Holdfast()\n"
        "@app.task\ndef greet(name: str): print('Hello', name)\n"
    )
    push = "import tasks; tasks.greet.push('Ada')"
    for url in (f"sqlite:{tmp_path}/work.db", f"{tmp_path}/data/acme/work"):
        env = {"HOLDFAST_QUEUE": url}
        subprocess.run(
            [sys.executable, "-c", push], cwd=tmp_path, env=clean_env(**env), check=True
        )
        ran = real(tmp_path, "work", "tasks:app", "--until-empty", env=env)
        assert (ran.code, "Hello Ada" in ran.out) == (0, True)
    refused = real(tmp_path, "work", "tasks:app")
    assert "no queue is given" in require_one_line(refused)


def test_a_message_written_by_hand_is_run(sqlite_place: AppFolder) -> None:
    place = sqlite_place
    body = '{"task": "greet", "arguments": {"site": {"host": "example.com"}}}'
    pushed = real(place.folder, "push", place.url, body)
    assert place.work().json["completed"] == 1
    assert place.result(pushed.out.strip()) == {"host": "example.com", "times": 1}


def test_a_value_that_is_not_json_is_reported_by_the_child_and_done(
    sqlite_place: AppFolder,
) -> None:
    sqlite_place.push("opaque")
    ran = sqlite_place.work()
    assert (ran.json["completed"], ran.json["dead_lettered"]) == (1, 0)
    assert "event=result_not_kept" in ran.err


def test_a_task_that_hangs_is_ended_and_retried_by_its_own_settings(
    sqlite_place: AppFolder,
) -> None:
    message_id = sqlite_place.push("hang")
    other = sqlite_place.push("isolated", 1)
    ran = sqlite_place.work()
    assert (ran.json["completed"], ran.json["retried"]) == (2, 1)
    assert sqlite_place.result(message_id) == "recovered"
    assert sqlite_place.result(other) == [1, 1]


def test_a_task_that_kills_its_process_is_a_dead_letter_after_its_own_retries(
    place: AppFolder,
) -> None:
    place.push("die")
    assert place.work().json["dead_lettered"] == 1
    [letter] = place.app.queue.dead_letters()
    assert letter.reason is not None
    assert letter.reason.startswith("failed once, last: the worker process died (SIGKILL")


def test_another_queue_can_be_given(sqlite_place: AppFolder) -> None:
    sqlite_place.push("isolated", 1)
    other = f"sqlite:{sqlite_place.folder}/other.db"
    ran = real(sqlite_place.folder, "work", other, "tasks:app", "--until-empty", "--json")
    assert ran.json["completed"] == 0
    assert sqlite_place.work().json["completed"] == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tasks:app", "--stall=3s"], "its own --stall: write it as in @app.task(stall=3.0)"),
        (["tasks:app", "--isolation=process"], "@app.task(isolation='process')"),
        (["tasks:greet"], "tasks:greet is a task: name its app, as in tasks:app"),
        (["tasks:apq"], "did you mean app?"),
        (["tasks:note"], "no queue is given"),
        (["sqlite:work.db"], "one MODULE:HANDLER is needed after the queue"),
    ],
)
def test_what_cannot_be_run_is_reported(
    sqlite_place: AppFolder, arguments: list[str], complaint: str
) -> None:
    ran = real(sqlite_place.folder, "work", *arguments)
    assert ran.code == 2
    assert complaint in require_one_line(ran)
