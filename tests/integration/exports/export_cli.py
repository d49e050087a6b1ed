"""A folder with an HTTP server that can pause, where tests run `holdfast export`."""

import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from holdfast.exports.building import open_jobs
from holdfast.exports.model import ExportJob, JobStatus
from support.cli.commands import WAIT_TIMEOUT_SECONDS, Cli, Ran, clean_env, eventually, start
from support.http_server import Ask, LoopbackServer, Route, Wire, file, status

CANARY = "SIGNATURE-CANARY"
TOKEN = "AAAA-TOKEN-CANARY"
# No credentials, so that nothing here calls AWS.
NO_AWS = {
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def make_gated(data: bytes, gate: Event) -> Route:
    """Return a route that sends the first byte at once and the rest when the gate opens."""

    def route(ask: Ask, wire: Wire) -> None:
        if gate.is_set():
            file(data)(ask, wire)
            return
        wire.head("200 OK", f"Content-Length: {len(data)}", 'ETag: "v1"')
        wire.body(data[:1])
        while not (gate.is_set() or wire.stopped.is_set()):
            time.sleep(0.02)
        wire.body(data[1:])

    return route


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
            self.server.on(f"/{name}", make_gated(self.make_data(name), self.gates[name]))
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

    def find_requested(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if self.server.asked(f"/{name}"))

    # -- running

    def make_arguments(self, *words: str) -> list[str]:
        return ["export", *words, "--allow-host", self.server.origin, "--workers", "1"]

    def run(self, list_: str, *options: str, stdin: bytes = b"") -> Ran:
        words = self.make_arguments("run", list_, "--to", "out", *options)
        return self.cli(*words, stdin=stdin)

    def start(self, *words: str, **env: str) -> "subprocess.Popen[bytes]":
        process = start(
            self.folder, *self.make_arguments(*words), env=clean_env(**NO_AWS, **env)
        )
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
        eventually(
            lambda: sum(job.state.completed_tasks for job in self.read_jobs(store)) >= count
        )


def wait_for_line(process: "subprocess.Popen[bytes]", words: bytes) -> None:
    """Read the log until these words occur."""
    assert process.stderr is not None
    assert any(words in line for line in process.stderr), "the log ended without these words"


def wait_for_end(process: "subprocess.Popen[bytes]") -> Ran:
    out, err = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    return Ran(process.returncode, out.decode(), err.decode())


def list_children(pid: int) -> list[int]:
    children = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == pid:
                    children.append(int(entry.name))
        except OSError:
            continue
    return children


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
    with LoopbackServer() as server:
        place = ExportCli(cli, server)
        try:
            yield place
        finally:
            place.close()
