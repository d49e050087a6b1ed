"""Races of real processes: does a rename or a link have one winner here?

A queue rests on that and on nothing else. Folders that are kept in step by copying
(sync programs, some network drives) let two win; no protocol on files can repair that.
"""

import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.adapters.local.filesystem.checks.racer import PAYLOAD
from holdfast.core.checks import CheckResult, fail, ok, warn

RACER = Path(__file__).with_name("racer.py")
RACERS = 4
HEATS = 250
_PATIENCE_SECONDS = 60.0
_NOT_HERE = (
    "do not use this folder with more than one process: choose one on a local disk or NFS"
)


def rename_race(folder: Path, racer: Path = RACER) -> Iterator[CheckResult]:
    """Every file has one winner, who finds it whole."""
    for heat in range(HEATS):
        (folder / f"heat-{heat}").write_bytes(PAYLOAD)
    winners = _run("rename", folder, racer)
    yield _verdict("rename", winners)


def link_race(folder: Path, racer: Path = RACER) -> Iterator[CheckResult]:
    """A name that is taken is refused. Worker cards rest on it."""
    for lane in range(RACERS):
        (folder / f"lane-{lane}").write_bytes(b"")
    try:
        os.link(folder / "lane-0", folder / "lane-probe")
    except OSError as error:
        yield fail("link", f"hard links do not work: {error.strerror}", "use another folder")
        return
    yield _verdict("link", _run("link", folder, racer))


def _verdict(how: str, winners: Counter[int]) -> CheckResult:
    twice = sum(1 for count in winners.values() if count > 1)
    nobody = HEATS - len(winners)
    if twice:
        return fail(how, f"{twice} of {HEATS} files were won by two processes", _NOT_HERE)
    if nobody:
        return fail(how, f"{nobody} of {HEATS} files were won by nobody or torn", _NOT_HERE)
    return ok(how, f"{RACERS} processes raced for {HEATS} files: each had one winner")


def _run(how: str, folder: Path, racer: Path) -> Counter[int]:
    """How many winners each heat had."""
    command = [sys.executable, "-I", "-S", str(racer), how, str(folder)]
    racers = [_start([*command, str(lane), str(HEATS)]) for lane in range(RACERS)]
    try:
        for process in racers:
            _line_of(process)
        for process in racers:
            _whistle(process)
        return Counter(int(heat) for process in racers for heat in _won(process))
    finally:
        for process in racers:
            _end(process)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii"
    )


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _whistle(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _won(process: subprocess.Popen[str]) -> list[str]:
    said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
    if process.returncode:
        raise OSError(f"a probing process ended with {process.returncode}")
    return said.split()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            assert pipe is not None
            pipe.close()


def lock_probe(folder: Path) -> Iterator[CheckResult]:
    """flock, by which pushes of one id take turns when dedupe is on."""
    path = folder / "lock"
    ours, theirs = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        yield _lock_verdict(ours, theirs)
    finally:
        os.close(ours)
        os.close(theirs)


def _lock_verdict(ours: int, theirs: int) -> CheckResult:
    no_dedupe = "do not use dedupe=True here; everything else works without locks"
    try:
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return warn("lock", f"flock does not work: {error.strerror}", no_dedupe)
    try:
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ok("lock", "flock keeps a second one out")
    return warn("lock", "flock lets two in at once", no_dedupe)
