"""The players that fetch the files. Each is a command that also checks the checksums."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class File:
    """A file to fetch."""

    url: str
    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Player:
    """A way to fetch files. `prepare` writes the input of the commands, which are timed."""

    name: str
    setup: str
    prepare: Callable[[Sequence[File], Path, Path], Sequence[Sequence[str]]]
    needs: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def is_installed(self) -> bool:
        """Return whether the program is installed."""
        return self.needs is None or shutil.which(self.needs) is not None


def _holdfast(files: Sequence[File], scratch: Path, to: Path) -> Sequence[Sequence[str]]:
    lines = [
        json.dumps({"url": file.url, "key": file.name, "checksum": f"sha256:{file.sha256}"})
        for file in files
    ]
    (scratch / "list.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-m", "holdfast.cli", "export", "run"]
    command += [str(scratch / "list.jsonl"), "--to", str(to), "--allow-private"]
    return [command]


def _curl(files: Sequence[File], scratch: Path, to: Path) -> Sequence[Sequence[str]]:
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


def _aria2(files: Sequence[File], scratch: Path, to: Path) -> Sequence[Sequence[str]]:
    lines = [
        f"{file.url}\n  out={file.name}\n  dir={to}\n  checksum=sha-256={file.sha256}"
        for file in files
    ]
    (scratch / "aria2.txt").write_text("\n".join(lines))
    command = ["aria2c", "--quiet", "--file-allocation=none", f"-j{AT_A_TIME}"]
    command += ["--no-conf", "--allow-overwrite=true", "--auto-file-renaming=false"]
    return [[*command, "-i", str(scratch / "aria2.txt")]]


def _script(files: Sequence[File], scratch: Path, to: Path) -> Sequence[Sequence[str]]:
    lines = [json.dumps([file.url, str(to / file.name), file.sha256]) for file in files]
    (scratch / "script.txt").write_text("\n".join(lines))
    return [[sys.executable, "-m", "bench.exports_players", str(scratch / "script.txt")]]


def _bare(files: Sequence[File], scratch: Path, to: Path) -> Sequence[Sequence[str]]:
    ((*command, listed),) = _script(files, scratch, to)
    return [[*command, listed, "bare"]]


HOLDFAST = Player("Holdfast", "up to 4 workers with 4 downloads each, its defaults", _holdfast)
CURL = Player("curl --parallel", "16 at a time, then sha256sum in two processes", _curl, "curl")
ARIA2 = Player("aria2c", "16 at a time, its own checksum option", _aria2, "aria2c")
SCRIPT = Player(
    "requests + threads", "16 threads, a session each, hashed while it is written", _script
)
BARE = Player(
    "pycurl alone",
    "two processes that fetch, hash and rename one file after the other; no records, no "
    "checks and no isolation, so it is the least that a download with pycurl costs",
    _bare,
)
PLAYERS = (HOLDFAST, CURL, ARIA2, SCRIPT, BARE)


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


if __name__ == "__main__":
    (fetch_bare if "bare" in sys.argv[2:] else fetch_all)(Path(sys.argv[1]))
