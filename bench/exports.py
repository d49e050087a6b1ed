"""exports: fetch many small files and some large ones over loopback, check and store them."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from resource import RUSAGE_CHILDREN
from socket import create_connection, socket
from statistics import median
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from tools import listeners

from bench.report import Bar, Chart, Result, at_most
from bench.session import Figures, Session, cpu_seconds

WAIT_TIMEOUT_SECONDS = 300.0
AT_A_TIME = 16
_POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """A number of files of one size."""

    name: str
    count: int
    size: int


# What Holdfast needs to start and to end: its time for one small file.
START = Load("one file", 1, 64 << 10)


@dataclass(frozen=True, slots=True)
class File:
    """A file to fetch."""

    url: str
    name: str
    sha256: str


Commands = Sequence[Sequence[str]]
Prepare = Callable[[Sequence[File], Path, Path], Commands]
"""Write the input of the commands that fetch files and check their checksums."""


def run_exports(session: Session) -> Result:
    """Compare Holdfast with curl, aria2, a script, and pycurl alone."""
    title = "Export: files fetched, checked and stored"
    small = Load("2,000 × 64 KiB", session.size(2_000, 300), 64 << 10)
    large = Load("20 × 64 MiB", session.size(20, 4), 64 << 20)
    players = [name for name in PLAYERS if name not in NEEDS or shutil.which(NEEDS[name])]
    www, scratch = session.scratch / "www", session.scratch / "exports"
    scratch.mkdir(parents=True)
    files = {load: _make_files(load, www) for load in (small, large)}
    files[START] = files[small][:1]
    with serve_files(www, scratch) as address:
        located = {
            load: [replace(file, url=f"{address}/{file.url}") for file in files[load]]
            for load in files
        }
        pairs = [(load, player) for load in (small, large) for player in players]
        measured = session.measure(
            title,
            {
                _label(load, player): partial(
                    _measure_fetch, session, PLAYERS[player], located[load]
                )
                for load, player in [*pairs, (START, HOLDFAST)]
            },
        )
    shutil.rmtree(www)

    def compare(player: str, load: Load) -> float:
        return measured.ratio(_label(load, player), _label(load, HOLDFAST), "seconds")

    def explain(player: str, load: Load) -> str:
        start, bare = (
            measured.median(_label(*pair), "seconds")
            for pair in ((START, HOLDFAST), (load, BARE))
        )
        reached = measured.median(_label(load, player), "seconds") / (start + bare)
        return f"the start for one file and {BARE} together reach {reached:.2f} ×"

    def add_up(player: str) -> list[float]:
        times = (measured.read(_label(load, player), "seconds") for load in (small, large))
        return [sum(each) for each in zip(*times, strict=True)]

    totals = {player: add_up(player) for player in players}
    script = median(a / b for a, b in zip(totals[SCRIPT], totals[HOLDFAST], strict=True))
    bars = [
        Bar("ahead of the script, all files", script, 1.0, "×"),
        Bar("ahead of the script, small files", compare(SCRIPT, small), 1.0, "×", aim=True),
        Bar(
            "ahead of the script, large files",
            compare(SCRIPT, large),
            1.0,
            "×",
            bound=explain(SCRIPT, large),
        ),
    ]
    if CURL in players:
        bars.append(
            Bar(
                f"speed against {CURL}, small files",
                compare(CURL, small),
                0.8,
                "×",
                bound=explain(CURL, small),
            )
        )
        slower = 1 / compare(CURL, large)
        bars.append(at_most(f"time against {CURL}, large files", slower, 1.3, "×"))
    if ARIA2 in players:
        lead = compare(ARIA2, small)
        bars.append(Bar(f"ahead of {ARIA2}, small files", lead, 1.0, "×", aim=True))
    peak = max(max(measured.read(_label(load, HOLDFAST), "mib")) for load in (small, large))
    bars.append(at_most("memory of the whole service", peak, 400.0, "MiB"))

    def make_row(player: str) -> list[str]:
        cells = [
            f"{measured.median(_label(load, player), figure):.2f}"
            for load in (small, large)
            for figure in ("seconds", "cpu")
        ]
        memory = max(measured.read(_label(large, player), "mib"))
        return [player, *cells, f"{median(totals[player]):.2f}", f"{memory:,.0f}"]

    start = measured.median(_label(START, HOLDFAST), "seconds")
    seconds = {
        player: [measured.median(_label(load, player), "seconds") for load in (small, large)]
        for player in players
    }
    return Result(
        title,
        ("", f"{small.name}, s", "CPU, s", f"{large.name}, s", "CPU, s", "all, s", "MiB"),
        [make_row(player) for player in players],
        bars,
        measured,
        "Each is a command that also compares the SHA-256 of every file. Holdfast also records "
        "each file, so that a kill costs no finished file, and checks every address; its start "
        f"takes {start:.2f} s.",
        [Chart(title, "seconds", [small.name, large.name], seconds)],
    )


def _label(load: Load, player: str) -> str:
    return f"{player}, {load.name}"


def _make_files(load: Load, www: Path) -> list[File]:
    """Create the files. Their URLs are still relative to the server."""
    folder = www / f"{load.size}"
    folder.mkdir(parents=True)
    random = Random(load.size)
    files = []
    for n in range(load.count):
        body = random.randbytes(load.size)
        (folder / f"{n}.bin").write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        files.append(File(f"{load.size}/{n}.bin", f"{n}.bin", digest))
    return files


def _measure_fetch(session: Session, prepare: Prepare, files: Sequence[File]) -> Figures:
    with session.arena.room("exports") as room:
        to = room / "to"
        to.mkdir()
        commands = prepare(files, session.scratch / "exports", to)
        os.sync()  # or this player would pay for the last one's unwritten data
        began, used = monotonic(), cpu_seconds(RUSAGE_CHILDREN)
        peaks = [_peak_mib(command) for command in commands]
        figures = {
            "seconds": monotonic() - began,
            "cpu": cpu_seconds(RUSAGE_CHILDREN) - used,  # without the server's
            "mib": max(peaks),  # of all its processes, with shared memory counted once
        }
        assert all((to / file.name).exists() for file in files), "files were left out"
    return figures


def _peak_mib(command: Sequence[str]) -> float:
    """Run a command to its end and return its peak memory.

    Memory is read only three times a second, because reading costs milliseconds for each
    process and would slow down commands with many processes.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    over, peak = Event(), [0.0]

    def watch() -> None:
        while not over.wait(_POLL_SECONDS):
            peak[0] = max(peak[0], _session_mib(process.pid))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        code = process.wait(WAIT_TIMEOUT_SECONDS)
    finally:
        over.set()
        watcher.join()
        process.kill()
    assert code == 0, f"{command[0]} ended with {code}"
    return peak[0]


def _session_mib(leader: int) -> float:
    """Return the proportional memory of a process and all its descendants."""
    return sum(map(_pss_kib, listeners.add_descendants({leader}))) / 1024


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


# -- the players


def _holdfast(files: Sequence[File], scratch: Path, to: Path) -> Commands:
    lines = [
        json.dumps({"url": file.url, "key": file.name, "checksum": f"sha256:{file.sha256}"})
        for file in files
    ]
    (scratch / "list.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-m", "holdfast.cli", "export", "run"]
    command += [str(scratch / "list.jsonl"), "--to", str(to), "--allow-private"]
    return [command]


def _curl(files: Sequence[File], scratch: Path, to: Path) -> Commands:
    lines = [f'url = "{file.url}"\noutput = "{to / file.name}"' for file in files]
    (scratch / "curl.conf").write_text("\n".join(lines))
    fetch = ["curl", "--silent", "--fail", "--parallel", "--parallel-max", str(AT_A_TIME)]
    return [[*fetch, "-K", str(scratch / "curl.conf")], _make_check(files, scratch, to)]


def _make_check(files: Sequence[File], scratch: Path, to: Path) -> Sequence[str]:
    """Return a command that runs sha256sum on both cores, with half of the files each."""
    for half in range(2):
        sums = "\n".join(f"{file.sha256}  {to / file.name}" for file in files[half::2])
        (scratch / f"sums{half}").write_text(sums)
    first = f"sha256sum --check --quiet {scratch}/sums0 & first=$!"
    second = f"sha256sum --check --quiet {scratch}/sums1"
    return ["sh", "-c", f"{first}; {second} && wait $first"]


def _aria2(files: Sequence[File], scratch: Path, to: Path) -> Commands:
    lines = [
        f"{file.url}\n  out={file.name}\n  dir={to}\n  checksum=sha-256={file.sha256}"
        for file in files
    ]
    (scratch / "aria2.txt").write_text("\n".join(lines))
    command = ["aria2c", "--quiet", "--file-allocation=none", f"-j{AT_A_TIME}"]
    command += ["--no-conf", "--allow-overwrite=true", "--auto-file-renaming=false"]
    return [[*command, "-i", str(scratch / "aria2.txt")]]


def _script(files: Sequence[File], scratch: Path, to: Path) -> Commands:
    lines = [json.dumps([file.url, str(to / file.name), file.sha256]) for file in files]
    (scratch / "script.txt").write_text("\n".join(lines))
    return [[sys.executable, "-m", "bench.exports", str(scratch / "script.txt")]]


def _bare(files: Sequence[File], scratch: Path, to: Path) -> Commands:
    ((*command, listed),) = _script(files, scratch, to)
    return [[*command, listed, "bare"]]


HOLDFAST, CURL, ARIA2 = "Holdfast", "curl --parallel", "aria2c"
SCRIPT, BARE = "requests + threads", "pycurl alone"
PLAYERS: dict[str, Prepare] = {
    HOLDFAST: _holdfast,
    CURL: _curl,
    ARIA2: _aria2,
    SCRIPT: _script,
    BARE: _bare,
}
NEEDS = {CURL: "curl", ARIA2: "aria2c"}


def fetch_all(listed: Path) -> None:
    """Fetch the files with a thread pool and requests, as a typical script does."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import local

    import requests

    cache = local()

    def fetch(line: str) -> None:
        url, path, wanted = json.loads(line)
        if not hasattr(cache, "session"):
            cache.session = requests.Session()
        digest = hashlib.sha256()
        with (
            cache.session.get(url, stream=True, timeout=60) as answer,
            open(path, "wb") as out,
        ):
            answer.raise_for_status()
            for chunk in answer.iter_content(1 << 20):
                digest.update(chunk)
                out.write(chunk)
        assert digest.hexdigest() == wanted, "the checksum is wrong"

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for done in [pool.submit(fetch, line) for line in listed.read_text().splitlines()]:
            done.result()


def fetch_bare(listed: Path) -> None:
    """Fetch the files with pycurl in two processes, and do nothing else that Holdfast does."""
    import pycurl

    lines = listed.read_text().splitlines()
    child = os.fork()
    curl = pycurl.Curl()
    curl.setopt(pycurl.BUFFERSIZE, 256 << 10)
    for line in lines[int(child == 0) :: 2]:
        url, path, wanted = json.loads(line)
        digest = hashlib.sha256()
        with open(f"{path}.part", "wb", buffering=256 << 10) as out:

            def receive(data: bytes, digest: Any = digest, out: Any = out) -> None:
                digest.update(data)
                out.write(data)

            curl.setopt(pycurl.URL, url)
            curl.setopt(pycurl.WRITEFUNCTION, receive)
            curl.perform()
        assert digest.hexdigest() == wanted, "the checksum is wrong"
        os.rename(f"{path}.part", path)
    if child:
        assert os.waitpid(child, 0)[1] == 0, "the other process failed"


# -- the server

_CONFIG = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 100000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@contextmanager
def serve_files(root: Path, scratch: Path) -> Iterator[str]:
    """Serve the files below `root` with nginx, or else Python's server; yield the address."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx:
        config = scratch / "nginx.conf"
        # As root, nginx would change to a user that cannot read the files.
        user = "user root;" if os.geteuid() == 0 else ""
        config.write_text(_CONFIG.format(user=user, folder=scratch, port=port, root=root))
        command = [nginx, "-p", str(scratch), "-c", str(config)]
    else:
        command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        command += ["--directory", str(root)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        listeners.assert_loopback_only()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(200):
        assert server.poll() is None, "the file server ended at once"
        try:
            create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            sleep(0.05)
        else:
            return
    raise AssertionError("the file server does not answer")


if __name__ == "__main__":
    (fetch_bare if "bare" in sys.argv[2:] else fetch_all)(Path(sys.argv[1]))
