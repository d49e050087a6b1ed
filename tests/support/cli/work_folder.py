"""A folder with handlers and a queue, where tests run real workers."""

import subprocess
from pathlib import Path
from typing import Any

from holdfast import AnyMessage, QueueManager, open_queue
from support.cli.commands import Ran, real, start

HANDLERS = """
import time
from pathlib import Path

from holdfast import QueueMessage, Reject, Retry


class Greeting(QueueMessage):
    name: str


def note(text):
    with open("effects", "a") as file:
        file.write(text + "\\n")


def greet(message: Greeting, ctx):
    note(f"{type(message).__name__} {message.name}")


def slow(message, ctx):
    note(f"started {message.id}")
    for _ in range(600):
        if Path("finish").exists():
            break
        ctx.beat()
        time.sleep(0.05)
    note(f"finished {message.id}")


def hang(message, ctx):
    note(f"started {message.id}")
    while not Path("finish").exists():
        time.sleep(0.05)


def reject(message):
    return Reject("canary-reason")


def fail(message):
    raise ValueError("no such luck")


def nonsense(message):
    return 42


async def gentle(message, ctx):
    note(f"gently {message.id}")


not_a_function = 7
"""


class WorkFolder:
    """A folder with `tasks.py` and a queue, and workers in it."""

    def __init__(self, folder: Path, url: str = "", tasks: str = HANDLERS) -> None:
        self.folder, self.url = folder, url or str(folder / "data" / "default" / "q")
        (folder / "tasks.py").write_text(tasks)
        self.queue: QueueManager[AnyMessage] = open_queue(self.url)
        self._started: list[subprocess.Popen[bytes]] = []

    def push(self, *ids: str, **fields: Any) -> None:
        """Push a message for each id."""
        self.queue.push_many(AnyMessage(id=id, **fields) for id in ids)

    def work(self, handler: str, *options: str) -> Ran:
        """Run a worker until the queue is empty."""
        return real(self.folder, "work", self.url, handler, "--until-empty", *options)

    def start(self, handler: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker, which `close` kills."""
        process = start(self.folder, "work", self.url, handler, *options)
        self._started.append(process)
        return process

    def read_effects(self) -> list[str]:
        """Return the lines that handlers wrote, sorted."""
        path = self.folder / "effects"
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def finish(self) -> None:
        """Let slow and hanging handlers end."""
        (self.folder / "finish").touch()

    def close(self) -> None:
        """Kill the workers and close the queue."""
        for process in self._started:
            process.kill()
            process.communicate()
        self.queue.close()
