"""A folder, an HTTP server that can be held up, and `holdfast export` to run there."""

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

from cli_kit import PATIENCE_SECONDS, Cli, Ran, clean_env, eventually, start

from holdfast.bootstrap.exports import open_jobs
from holdfast.jobs.model import ExportJob, JobStatus
from loopback_http import Ask, LoopbackServer, Route, Wire, file, status

CANARY = "SIGNATURE-CANARY"
TOKEN = "AAAA-TOKEN-CANARY"
# Addresses of Amazon that are none: nothing here may ask anybody.
NO_AWS = {
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def gated(data: bytes, gate: Event) -> Route:
    """The beginning of a file at once, the rest when the gate opens."""

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
    """`holdfast export`, in this process or as a real one."""

    def __init__(self, cli: Cli, server: LoopbackServer) -> None:
        self.cli, self.folder, self.server = cli, cli.folder, server
        self.gates: defaultdict[str, Event] = defaultdict(Event)
        self._started: list[subprocess.Popen[bytes]] = []

    # -- what is to be had

    def serve(self, *names: str, bad: tuple[str, ...] = (), slow: tuple[str, ...] = ()) -> None:
        for name in names:
            self.server.on(f"/{name}", file(self.data(name)))
        for name in slow:
            self.server.on(f"/{name}", gated(self.data(name), self.gates[name]))
        for name in bad:
            self.server.on(f"/{name}", status("404 Not Found"))

    def open(self, *names: str) -> None:
        """Let the rest of these come, or of all."""
        for name in names or tuple(self.gates):
            self.gates[name].set()

    def data(self, name: str) -> bytes:
        return f"the file {name}".encode() * 50

    def url(self, name: str) -> str:
        return f"{self.server.url('/' + name)}?sig={CANARY}"

    def urls(self, *names: str, path: str = "urls.txt") -> str:
        text = "".join(f"{self.url(name)}\n" for name in names)
        (self.folder / path).write_text(f"# files\n\n{text}")
        return path

    def job(self, *names: str, path: str = "job.json", **fields: Any) -> str:
        tasks = [{"url": self.url(name), "key": name} for name in names]
        (self.folder / path).write_text(json.dumps({"tasks": tasks, **fields}))
        return path

    def asked(self, *names: str) -> list[int]:
        return [len(self.server.asked(f"/{name}")) for name in names]

    def begun(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if self.server.asked(f"/{name}"))

    # -- running

    def words(self, *words: str) -> list[str]:
        return ["export", *words, "--allow-host", self.server.origin, "--workers", "1"]

    def run(self, list_: str, *options: str, stdin: bytes = b"") -> Ran:
        words = self.words("run", list_, "--to", "out", *options)
        return self.cli(*words, stdin=stdin)

    def begin(self, *words: str, **env: str) -> "subprocess.Popen[bytes]":
        started = start(self.folder, *self.words(*words), env=clean_env(**NO_AWS, **env))
        self._started.append(started)
        return started

    def close(self) -> None:
        self.open()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    # -- what became of it

    def files(self, below: str = "out") -> dict[str, bytes]:
        root = self.folder / below
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and ".holdfast" not in path.parts
        }

    def whole(self, *names: str) -> dict[str, bytes]:
        return {name: self.data(name) for name in names}

    def stored(self, store: str = "out/.holdfast/jobs.db") -> list[ExportJob]:
        path = self.folder / store
        if not path.exists():
            return []
        with open_jobs(path) as jobs:
            return [job for status in JobStatus for job in jobs.find_by_status(status)]

    def done(self, count: int, store: str = "out/.holdfast/jobs.db") -> None:
        """Wait until that many tasks are counted."""
        eventually(
            lambda: sum(job.state.completed_tasks for job in self.stored(store)) >= count
        )


def await_line(process: "subprocess.Popen[bytes]", words: bytes) -> None:
    """Read what it says until these words come."""
    assert process.stderr is not None
    assert any(words in line for line in process.stderr), "it ended without saying that"


def ended(process: "subprocess.Popen[bytes]") -> Ran:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return Ran(process.returncode, out.decode(), err.decode())


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == pid:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def workers_of(pid: int) -> list[int]:
    """Pool workers: children that have left our session."""
    return [child for child in children(pid) if _session(child) == child]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@contextmanager
def export_cli(cli: Cli) -> Iterator[ExportCli]:
    with LoopbackServer() as server:
        place = ExportCli(cli, server)
        try:
            yield place
        finally:
            place.close()
