"""holdfast.django: a real Django project enqueues, and a real worker runs its tasks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from holdfast import AnyMessage, QueueManager, open_queue
from support.cli.commands import real

SETTINGS = """
    import importlib.util

    SECRET_KEY = "for tests"
    USE_TZ = True
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
    own_tasks = importlib.util.find_spec("django.tasks") is not None  # since Django 6.0
    INSTALLED_APPS = [] if own_tasks else ["django_tasks"]
    TASKS = {
        "default": {
            "BACKEND": "holdfast.django.HoldfastBackend",
            "QUEUES": ["default", "emails"],
            "OPTIONS": {"queue": "sqlite:work.db"},
        },
        "files": {
            "BACKEND": "holdfast.django.HoldfastBackend",
            "OPTIONS": {"queue": "./data/acme/tasks"},
        },
    }
"""
TASKS = """
    import os

    from django.db import connection

    try:
        from django.tasks import signals, task
    except ImportError:
        from django_tasks import signals, task


    def note(text):
        with open("effects", "a") as file:
            file.write(text + "\\n")


    @task
    def add(a, b=0):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        note(f"add {a + b}")
        return {"sum": a + b}


    @task(takes_context=True, queue_name="emails")
    async def send(context, to):
        context.holdfast.beat()
        note(f"send {to} {context.attempt} {context.task_result.task.queue_name}")


    @task
    def fail():
        raise LookupError("no such luck\\nHint: none")


    @task
    def return_object():
        return object()


    @task
    def die():
        os._exit(1)


    not_a_task = note
    signals.task_started.connect(lambda task_result, **_: note(task_result.status), weak=False)
    signals.task_finished.connect(lambda task_result, **_: note(task_result.status), weak=False)
"""
PRELUDE = """
    import json, django
    django.setup()
    from datetime import timedelta
    from django.utils import timezone
    from tasks import add, die, fail, return_object, send

    def show(result):
        errors = [
            [error.exception_class.__name__, "no such luck" in error.traceback]
            for error in result.errors
        ]
        print(json.dumps([result.status, result.attempts, errors]))
"""


class Project:
    """A folder with a Django project whose tasks go to a SQLite queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "settings.py").write_text(dedent(SETTINGS))
        (folder / "tasks.py").write_text(dedent(TASKS))

    def run(self, code: str) -> list[Any]:
        """Run code in the project, and return the JSON lines that it printed."""
        script = dedent(PRELUDE) + dedent(code)
        ran = subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.folder,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    def work(self, *options: str, queue: str = "sqlite:work.db") -> str:
        """Run a worker until the queue is empty, and return what it printed."""
        ran = real(
            self.folder,
            *("work", queue, "holdfast.django:run_task", "--until-empty", "--backoff=0s"),
            *options,
            env={"DJANGO_SETTINGS_MODULE": "settings"},
        )
        assert ran.code == 0, ran.err
        return ran.out

    def open(self) -> QueueManager[AnyMessage]:
        """Open the queue."""
        return open_queue(f"sqlite:{self.folder}/work.db", env={})

    @property
    def effects(self) -> list[str]:
        """The lines that the tasks wrote."""
        return (self.folder / "effects").read_text().splitlines()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    "isolation", ["thread", pytest.param("process", marks=pytest.mark.nightly)]
)
def test_a_task_is_enqueued_run_and_found(project: Project, isolation: str) -> None:
    """A value that cannot be kept is a warning, and its task is done."""
    [[result_id, other_id], *ready] = project.run(
        """
        result = add.enqueue(40, b=2)
        print(json.dumps([result.id, return_object.enqueue().id]))
        show(result)
        show(add.get_result(result.id))
        """
    )
    assert ready == [["READY", 0, []]] * 2
    assert project.work(f"--isolation={isolation}").startswith("completed 2, retried 0")
    assert project.effects == ["RUNNING", "add 42", "SUCCESSFUL", "RUNNING", "SUCCESSFUL"]
    found = project.run(
        f"""
        for result in add.get_result({result_id!r}), return_object.get_result({other_id!r}):
            show(result)
            print(json.dumps(result.return_value))
        """
    )
    assert found == [["SUCCESSFUL", 1, []], {"sum": 42}, ["SUCCESSFUL", 1, []], None]


def test_a_queue_that_keeps_no_results_says_so(project: Project) -> None:
    [[result_id]] = project.run('print(json.dumps([add.using(backend="files").enqueue(1).id]))')
    project.work(queue="./data/acme/tasks")
    [status, message] = project.run(
        f"""
        result = add.using(backend="files").get_result({result_id!r})
        print(json.dumps(result.status))
        try:
            result.return_value
        except Exception as error:
            print(json.dumps(str(error)))
        """
    )
    assert status == "SUCCESSFUL"
    assert "the queue 'acme/tasks' does not keep what a task returns" in message


def test_a_task_whose_process_dies_has_errors_too(project: Project) -> None:
    [[result_id]] = project.run("print(json.dumps([die.enqueue().id]))")
    project.work("--isolation=process", "--max-attempts=1")
    [result] = project.run(f"show(die.get_result({result_id!r}))")
    assert result == ["FAILED", 1, [["AttemptFailed", False]]]


def test_an_async_task_gets_its_context_and_its_queue(project: Project) -> None:
    project.run(
        """
        import asyncio
        asyncio.run(send.aenqueue("you"))
        """
    )
    project.work()
    assert project.effects == ["RUNNING", "send you 1 emails", "SUCCESSFUL"]


def test_a_task_that_raises_is_retried_and_then_failed_with_its_errors(
    project: Project,
) -> None:
    [[result_id]] = project.run("print(json.dumps([fail.enqueue().id]))")
    assert "dead lettered 1" in project.work("--max-attempts=2")
    assert project.effects == ["RUNNING", "FAILED"] * 2
    [result] = project.run(f"show(fail.get_result({result_id!r}))")
    assert result == ["FAILED", 2, [["LookupError", True]] * 2]


def test_a_task_can_be_deferred(project: Project) -> None:
    project.run("add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)")
    with project.open() as queue:
        assert (queue.stats().delayed, queue.stats().ready) == (1, 0)


def test_what_cannot_be_done_is_refused_and_nothing_is_pushed(project: Project) -> None:
    *refused, not_json, unknown = project.run(
        """
        for refused in (
            lambda: add.using(priority=5).enqueue(1),
            lambda: add.using(queue_name="nowhere").enqueue(1),
            lambda: add.enqueue(object()),
            lambda: add.get_result("nowhere"),
        ):
            try:
                refused()
            except Exception as error:
                print(json.dumps(type(error).__name__))
        """
    )
    for kind in refused:
        assert kind in ("InvalidTask", "InvalidTaskError")  # since Django 6.0, and before
    assert (len(refused), not_json, unknown) == (2, "TypeError", "TaskResultDoesNotExist")
    with project.open() as queue:
        assert queue.stats().ready == 0


def test_a_path_that_is_not_a_task_is_a_dead_letter(project: Project) -> None:
    with project.open() as queue:
        queue.push(
            AnyMessage(
                path="tasks.not_a_task", args=["x"], backend="default", queue_name="default"
            )
        )
        project.work()
        [letter] = queue.dead_letters()
    assert letter.reason == "tasks.not_a_task is not a Django task"
    assert not (project.folder / "effects").exists()
