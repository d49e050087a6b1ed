"""A folder with an HTTP server that can pause, where tests run `holdfast export`."""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from holdfast.exports.building import open_jobs
from holdfast.exports.model import ExportJob, JobStatus
from support.cli.commands import Cli, Ran, clean_env, start
from support.http_server import LoopbackServer, file, gated, status
from support.waiting import wait_until

CANARY = "SIGNATURE-CANARY"
TOKEN = "AAAA-TOKEN-CANARY"


class ExportCli:
    """Runs `holdfast export` in this process or as a real process."""

    def __init__(self, cli: Cli, server: LoopbackServer) -> None:
        self.cli, self.folder, self.server = cli, cli.folder, server
        self.gates: defaultdict[str, Event] = defaultdict(Event)
        self._started: list[subprocess.Popen[bytes]] = []

    # -- files and lists

    def serve(self, *names: str, bad: tuple[str, ...] = (), slow: tuple[str, ...] = ()) -> None:
        """Serve files: at once, with an error, or behind a gate."""
        for name in names:
            self.server.on(f"/{name}", file(self.make_data(name)))
        for name in slow:
            self.server.on(f"/{name}", gated(self.make_data(name), self.gates[name]))
        for name in bad:
            self.server.on(f"/{name}", status("404 Not Found"))

    def open(self, *names: str) -> None:
        """Open the gates of these files, or of all."""
        for name in names or tuple(self.gates):
            self.gates[name].set()

    def make_data(self, name: str) -> bytes:
        return f"the file {name}".encode() * 50

    def make_url(self, name: str) -> str:
        return f"{self.server.url('/' + name)}?sig={CANARY}"

    def write_urls(self, *names: str, path: str = "urls.txt") -> str:
        text = "".join(f"{self.make_url(name)}\n" for name in names)
        (self.folder / path).write_text(f"# files\n\n{text}")
        return path

    def write_job(self, *names: str, path: str = "job.json", **fields: Any) -> str:
        tasks = [{"url": self.make_url(name), "key": name} for name in names]
        (self.folder / path).write_text(json.dumps({"tasks": tasks, **fields}))
        return path

    def count_requests(self, *names: str) -> list[int]:
        return [len(self.server.asked(f"/{name}")) for name in names]

    # -- running

    def make_arguments(self, *words: str) -> list[str]:
        return ["export", *words, "--allow-host", self.server.origin, "--workers", "1"]

    def run(self, list_: str, *options: str, stdin: bytes = b"") -> Ran:
        words = self.make_arguments("run", list_, "--to", "out", *options)
        return self.cli(*words, stdin=stdin)

    def start(self, *words: str, **env: str) -> "subprocess.Popen[bytes]":
        process = start(self.folder, *self.make_arguments(*words), env=clean_env(**env))
        self._started.append(process)
        return process

    def close(self) -> None:
        self.open()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    # -- results

    def read_files(self, below: str = "out") -> dict[str, bytes]:
        root = self.folder / below
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and ".holdfast" not in path.parts
        }

    def expect_files(self, *names: str) -> dict[str, bytes]:
        return {name: self.make_data(name) for name in names}

    def read_jobs(self, store: str = "out/.holdfast/jobs.db") -> list[ExportJob]:
        path = self.folder / store
        if not path.exists():
            return []
        with open_jobs(path) as jobs:
            return [job for status in JobStatus for job in jobs.find_by_status(status)]

    def wait_for_tasks(self, count: int, store: str = "out/.holdfast/jobs.db") -> None:
        """Wait until `count` tasks are counted."""
        wait_until(
            lambda: sum(job.state.completed_tasks for job in self.read_jobs(store)) >= count
        )


def list_children(pid: int) -> list[int]:
    """Return the processes that the threads of a process have started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


def list_workers(pid: int) -> list[int]:
    """Return the pool workers, which are the children with their own session."""
    return [child for child in list_children(pid) if _get_session(child) == child]


def _get_session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@contextmanager
def open_export_cli(cli: Cli) -> Iterator[ExportCli]:
    with LoopbackServer() as server, closing(ExportCli(cli, server)) as place:
        yield place
