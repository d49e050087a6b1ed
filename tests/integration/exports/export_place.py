"""A server, a target, and the export work between them."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.exports.downloads.work import ExportWork, WorkSettings
from holdfast.exports.file_names import OWN_FOLDER
from holdfast.lease.clock import Clock
from holdfast.testing import ManualClock
from support.http_server import ETAG, Ask, LoopbackServer, Route, Wire

_PROCESS = """
import json, resource, sys
from holdfast.exports.downloads.work import ExportWork, WorkSettings
settings, task, limit = json.loads(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
work = ExportWork(WorkSettings(**settings))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = work.process(task, lambda count: None)
work.close()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({**result, "grownKiB": grown}))
"""


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# -- routes of servers with peculiarities


def rest(data: bytes, *, etag: str = ETAG, shift: int = 0) -> Route:
    """Send the rest with a range that begins `shift` later, whatever If-Range says."""

    def route(ask: Ask, wire: Wire) -> None:
        piece, first = data[ask.start :], ask.start + shift
        span = f"Content-Range: bytes {first}-{len(data) - 1}/{len(data)}"
        length = f"Content-Length: {len(piece)}"
        wire.head("206 Partial Content", length, span, f"ETag: {etag}")
        wire.body(piece)

    return route


def cut(
    data: bytes,
    at: int,
    *,
    etag: str | None = ETAG,
    length: int | None = None,
    then: Callable[[Wire], None] = Wire.close,
) -> Route:
    """Send the file up to a byte, then close the connection, or let it hang."""

    def route(ask: Ask, wire: Wire) -> None:
        tags = [f"ETag: {etag}"] if etag else []
        wire.head("200 OK", f"Content-Length: {length or len(data)}", *tags)
        wire.body(data[:at])
        then(wire)

    return route


def chunked(data: bytes, *fields: str, whole: bool = True) -> Route:
    def route(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", "Transfer-Encoding: chunked", *fields)
        for at in range(0, len(data), 10_000):
            piece = data[at : at + 10_000]
            wire.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        if whole:
            wire.send(b"0\r\n\r\n")
        else:
            wire.close()

    return route


def until_closed(data: bytes, *fields: str) -> Route:
    """Respond like an old server: the end of the connection is the end of the file."""

    def route(ask: Ask, wire: Wire) -> None:
        wire.head("200 OK", "Connection: close", *fields)
        wire.body(data)
        wire.close()

    return route


# -- exports


@dataclass
class ExportPlace:
    """A server and a target for exports."""

    server: LoopbackServer
    target: Path
    # Waits between attempts pass at once, but the time of the network is real.
    clock: Clock = field(
        default_factory=lambda: ManualClock(time=time.time(), auto_advance=True)
    )
    reported: list[int] = field(default_factory=list)

    def settings(self, **other: Any) -> WorkSettings:
        plain = WorkSettings(
            str(self.target),
            str(self.target.with_name("scratch")),
            allow_hosts=(self.server.origin,),
            stall_seconds=20,
        )
        return replace(plain, **other)

    @contextmanager
    def work(self, **other: Any) -> Iterator[ExportWork]:
        work = ExportWork(self.settings(**other), self.clock)
        try:
            yield work
        finally:
            work.close()

    def task(self, url: str, key: str = "file.bin", **other: Any) -> dict[str, Any]:
        identity = hashlib.sha256(f"{url} {key}".encode()).hexdigest()[:32]
        plain = {"taskId": identity, "jobId": "job-1", "url": url, "s3Bucket": None}
        return {**plain, "s3Key": key, "checksum": None, "size": None, "attempt": 1, **other}

    def get(self, url: str, key: str = "file.bin", **other: Any) -> Mapping[str, Any]:
        """Do one task with its own work. `other` are settings, or fields of the task."""
        known = {name: other.pop(name) for name in list(other) if name in _OF_SETTINGS}
        with self.work(**known) as work:
            return work.process(self.task(url, key, **other), self.reported.append)

    def code(self, url: str, key: str = "file.bin", **other: Any) -> str:
        """Return the error code of one task, which must fail and change nothing visible."""
        before = self.visible()
        result = self.get(url, key, **other)
        assert result["success"] is False
        assert result["bytesProcessed"] == 0
        assert self.visible() == before
        code: str = result["error"]["code"]
        return code

    def visible(self) -> dict[str, bytes]:
        """Return all visible files of the target."""
        files = {}
        for folder, folders, names in os.walk(self.target):
            if OWN_FOLDER in folders:
                folders.remove(OWN_FOLDER)
            for name in names:
                path = Path(folder, name)
                files[str(path.relative_to(self.target))] = path.read_bytes()
        return files

    def hidden(self) -> list[str]:
        return sorted(os.listdir(self.target / OWN_FOLDER))

    def part_size(self) -> int:
        return sum(path.stat().st_size for path in (self.target / OWN_FOLDER).glob("*.part"))

    def process(
        self, task: dict[str, Any], *, limit: int = 0, **other: Any
    ) -> "subprocess.Popen[bytes]":
        """Do one task in a process of its own, as in a worker."""
        settings = self.settings(**other)
        plain = {name: getattr(settings, name) for name in _OF_SETTINGS}
        return subprocess.Popen(
            [sys.executable, "-c", _PROCESS, json.dumps([plain, task, limit])],
            stdout=subprocess.PIPE,
        )


_OF_SETTINGS = tuple(WorkSettings.__dataclass_fields__)


def result_of(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    out, _ = process.communicate(timeout=120)
    result: dict[str, Any] = json.loads(out)
    return result
