"""A folder with an app whose tasks write their effects to a file, for real workers."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast import Holdfast
from support.cli.commands import Ran, real, start

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


class AppFolder:
    """A folder with `tasks.py`, which has an app on a queue in this folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url.replace("FOLDER", str(folder))
        source = TASKS.replace("URL", self.url)
        (folder / "tasks.py").write_text(source)
        self.app = _load_app(source, folder)
        self._started: list[subprocess.Popen[bytes]] = []

    def push(self, task: str, *args: Any, **kwargs: Any) -> str:
        """Push a task, as a producer in another process does."""
        return self.app.tasks[task].push(*args, **kwargs)

    def result(self, message_id: str) -> Any:
        """Return the result of a message."""
        return self.app.load_result(message_id)

    def work(self, *options: str) -> Ran:
        """Run a worker until the queue is empty."""
        return real(self.folder, "work", "tasks:app", "--until-empty", "--json", *options)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker, which `close` kills."""
        process = start(self.folder, "work", "tasks:app", *options)
        self._started.append(process)
        return process

    def read_effects(self) -> list[str]:
        """Return the lines that tasks wrote."""
        path = self.folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        """Kill the workers and close the queue."""
        for process in self._started:
            process.kill()
            process.communicate()
        self.app.close()


def _load_app(source: str, folder: Path) -> Holdfast:
    # A module of its own name, because each test has another folder.
    module = ModuleType("tasks")
    module.__file__ = str(folder / "tasks.py")
    before = sys.modules.get("tasks")
    sys.modules["tasks"] = module
    try:
        exec(compile(source, "tasks.py", "exec"), module.__dict__)
    finally:
        if before is None:
            del sys.modules["tasks"]
        else:
            sys.modules["tasks"] = before
    app: Holdfast = module.app
    return app
