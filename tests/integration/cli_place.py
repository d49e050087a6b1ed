"""A folder with handlers and a queue, and real workers to run there."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli_kit import PATIENCE_SECONDS, Ran, real, start

from holdfast import AnyMessage, QueueManager, open_queue

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


class Place:
    """A folder with handlers in it and a queue to work on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tasks.py").write_text(HANDLERS)
        self.queue: QueueManager[AnyMessage] = open_queue(folder / "data" / "default" / "q")
        self.url = str(folder / "data" / "default" / "q")
        self._started: list[subprocess.Popen[bytes]] = []

    def push(self, *ids: str, **fields: Any) -> None:
        self.queue.push_many(AnyMessage(id=id, **fields) for id in ids)

    def work(self, handler: str, *options: str) -> Ran:
        return real(self.folder, "work", self.url, handler, "--until-empty", *options)

    def start(self, handler: str, *options: str) -> subprocess.Popen[bytes]:
        process = start(self.folder, "work", self.url, handler, *options)
        self._started.append(process)
        return process

    def effects(self) -> list[str]:
        path = self.folder / "effects"
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def finish(self) -> None:
        (self.folder / "finish").touch()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self.queue.close()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out.decode(), err.decode()


def started(place: Place, count: int) -> Callable[[], bool]:
    return lambda: len([e for e in place.effects() if e.startswith("started")]) == count


def heard(worker: subprocess.Popen[bytes], *words: bytes) -> bool:
    """Read its log until all the words were there, in whatever order."""
    assert worker.stderr is not None
    missing = set(words)
    for line in iter(worker.stderr.readline, b""):
        missing -= {word for word in missing if word in line}
        if not missing:
            return True
    return False
