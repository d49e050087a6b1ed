"""`holdfast work tasks:app`: real processes on SQLite and on files."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from holdfast import Holdfast
from holdfast.errors import Unsupported
from support.cli.commands import (
    Ran,
    clean_env,
    log_contains,
    real,
    require_one_line,
    wait_for_end,
)
from support.cli.work_folder import WorkFolder
from support.sqs.server import Sqs
from support.waiting import wait_until

if TYPE_CHECKING:  # because pytest must load that module itself
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

SQLITE = "sqlite:FOLDER/work.db"
FILES = "FOLDER/data/acme/work"
TASKS = """
import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast import Holdfast

app = Holdfast("URL")
FOLDER = Path(__file__).parent


@dataclass
class Site:
    host: str


def note(text):
    with open(FOLDER / "effects", "a") as file:
        file.write(text + "\\n")


@app.task
def greet(site: Site, times: int = 1):
    note(f"greet {site.host} in {os.getpid()}")
    return {"host": site.host, "times": times}


@app.task(isolation="process", retries=5)
def isolated(number: int, ctx):
    note(f"isolated {number} in {os.getpid()}")
    return [number, ctx.attempt]


@app.task(isolation="process")
async def gentle(name: str):
    await asyncio.sleep(0)
    return name


@app.task(isolation="process", stall="2s", retries=1, backoff="10ms")
def hang(ctx):
    note(f"hang {ctx.attempt}")
    if ctx.attempt == 1:
        time.sleep(60)
    return "recovered"


@app.task(isolation="process")
def opaque():
    return {1: object()}


@app.task(isolation="process", retries=0)
def die():
    os.kill(os.getpid(), 9)


def wait_for_file(name):
    while not (FOLDER / name).exists():
        time.sleep(0.02)


@app.task
def slow(name: str, ctx):
    note(f"slow {name} {ctx.attempt}")
    wait_for_file("finish")
    return ctx.attempt


@app.task(isolation="process")
def endless():
    note("endless")
    wait_for_file("never")
"""


class AppFolder(WorkFolder):
    """A folder with an app that has its own queue."""

    def __init__(self, folder: Path, url: str) -> None:
        url = url.replace("FOLDER", str(folder))
        super().__init__(folder, url, TASKS.replace("URL", url))
        spec = spec_from_file_location("tasks", folder / "tasks.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        with patch.dict(sys.modules, tasks=module):  # each test has another one
            spec.loader.exec_module(module)
        self.app: Holdfast = module.app

    def push(self, task: str, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        """Push a task, as a producer in another process does."""
        return self.app.tasks[task].push(*args, **kwargs)

    def result(self, message_id: str) -> Any:
        """Return the result of a message."""
        return self.app.load_result(message_id)

    def work(self, *options: str) -> Ran:  # type: ignore[override]
        """Run a worker until the queue is empty."""
        return real(self.folder, "work", "tasks:app", "--until-empty", "--json", *options)

    def close(self) -> None:
        super().close()
        self.app.close()


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
    tmp_path: Path, ministack: "Ministack", monkeypatch: pytest.MonkeyPatch
) -> None:
    sqs = Sqs(ministack)
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
    worker = place.start("tasks:app", "-c", "2")
    wait_until(lambda: len(place.read_effects()) == 2)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    place.finish()
    ran = place.work("-c", "2", "--until-done")  # also while the dead worker has its leases
    assert ran.json["completed"] == 2
    assert sorted(place.read_effects()) == ["slow a 1", "slow a 2", "slow b 1", "slow b 2"]
    assert place.app.queue.stats().completed == 2
    assert [place.result(message_id) for message_id in ids] == [2, 2]


def test_ctrl_c_lets_running_tasks_finish(sqlite_place: AppFolder) -> None:
    sqlite_place.push("slow", "a")
    worker = sqlite_place.start("tasks:app", "--json")
    wait_until(sqlite_place.read_effects)
    worker.send_signal(signal.SIGINT)
    assert log_contains(worker, b"draining: 1 running")
    sqlite_place.finish()
    code, out, _ = wait_for_end(worker)
    assert code == 0
    assert '"completed": 1' in out


def test_ctrl_c_twice_gives_back_what_runs_in_processes(sqlite_place: AppFolder) -> None:
    sqlite_place.push("endless")
    worker = sqlite_place.start("tasks:app", "--json")
    wait_until(sqlite_place.read_effects)
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
