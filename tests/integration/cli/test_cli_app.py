"""`holdfast work tasks:app`: real processes on SQLite and on files."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import Unsupported
from support.cli.app_folder import AppFolder
from support.cli.commands import clean_env, eventually, real, require_one_line
from support.cli.work_folder import log_contains, wait_for_end
from support.sqs.server import Server, Sqs

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


def test_results_are_ignored_with_one_warning_in_files(tmp_path: Path) -> None:
    place = AppFolder(tmp_path, FILES)
    for number in range(3):
        place.push("isolated", number)
    ran = place.work()
    assert ran.json["completed"] == 3
    assert ran.err.count("event=result_not_kept") == 1


def test_results_are_ignored_with_one_warning_on_sqs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Server()) as server:
        sqs = Sqs(server.url)
        for name, value in sqs.env.items():
            monkeypatch.setenv(name, value)
        place = AppFolder(tmp_path, f"sqs:{sqs.new_queue(redrive_after=6)}")
        for number in range(3):
            message_id = place.push("isolated", number, id=f"tick-{number}")
        ran = real(tmp_path, "work", "tasks:app", "--until-empty", "--json", env=dict(sqs.env))
        assert ran.json["completed"] == 3
        assert ran.err.count("event=result_not_kept") == 1
        with pytest.raises(Unsupported, match="results"):
            place.result(message_id)
        place.close()


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


@pytest.mark.parametrize("place", [f"{SQLITE}?lease_seconds=2"], ids=["sqlite"], indirect=True)
def test_after_kill_9_of_the_worker_another_one_finishes_each_task_once(
    place: AppFolder,
) -> None:
    ids = [place.push("slow", name) for name in "ab"]
    worker = place.start("-c", "2")
    eventually(lambda: len(place.read_effects()) == 2)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    (place.folder / "finish").touch()
    ran = place.work("-c", "2", "--until-done")  # also while the dead worker has its leases
    assert ran.json["completed"] == 2
    assert sorted(place.read_effects()) == ["slow a 1", "slow a 2", "slow b 1", "slow b 2"]
    assert place.app.queue.stats().completed == 2
    assert [place.result(message_id) for message_id in ids] == [2, 2]


def test_ctrl_c_lets_running_tasks_finish(sqlite_place: AppFolder) -> None:
    sqlite_place.push("slow", "a")
    worker = sqlite_place.start("--json")
    eventually(sqlite_place.read_effects)
    worker.send_signal(signal.SIGINT)
    assert log_contains(worker, b"draining: 1 running")
    (sqlite_place.folder / "finish").touch()
    code, out, _ = wait_for_end(worker)
    assert code == 0
    assert '"completed": 1' in out


def test_ctrl_c_twice_gives_back_what_runs_in_processes(sqlite_place: AppFolder) -> None:
    sqlite_place.push("endless")
    worker = sqlite_place.start("--json")
    eventually(sqlite_place.read_effects)
    worker.send_signal(signal.SIGINT)
    assert log_contains(worker, b"draining: 1 running")
    worker.send_signal(signal.SIGINT)
    code, out, _ = wait_for_end(worker)
    assert code == 130
    assert '"given_back": 1' in out
    stats = sqlite_place.app.queue.stats()
    assert (stats.ready, stats.leased) == (1, 0)


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
