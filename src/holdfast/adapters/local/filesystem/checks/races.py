"""Races of real processes, which show whether a rename or a link has one winner here.

A queue relies on that and on nothing else. In folders that are synced by copying (sync
programs, some network drives) two processes can win, and no protocol on files can repair
that.
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
_WAIT_TIMEOUT_SECONDS = 60.0
_OTHER_FOLDER_REMEDY = (
    "do not use this folder with more than one process: choose one on a local disk or NFS"
)


def race_renames(folder: Path, racer: Path = RACER) -> Iterator[CheckResult]:
    """Check that every rename has one winner, which finds the file complete."""
    for heat in range(HEATS):
        (folder / f"heat-{heat}").write_bytes(PAYLOAD)
    winners = _run_race("rename", folder, racer)
    yield _judge_race("rename", winners)


def race_links(folder: Path, racer: Path = RACER) -> Iterator[CheckResult]:
    """Check that a link to an existing name is refused. Worker cards rely on it."""
    for lane in range(RACERS):
        (folder / f"lane-{lane}").write_bytes(b"")
    try:
        os.link(folder / "lane-0", folder / "lane-probe")
    except OSError as error:
        yield fail("link", f"hard links do not work: {error.strerror}", "use another folder")
        return
    yield _judge_race("link", _run_race("link", folder, racer))


def _judge_race(operation: str, winners: Counter[int]) -> CheckResult:
    twice = sum(1 for count in winners.values() if count > 1)
    without_winner = HEATS - len(winners)
    if twice:
        return fail(
            operation,
            f"{twice} of {HEATS} files were won by two processes",
            _OTHER_FOLDER_REMEDY,
        )
    if without_winner:
        return fail(
            operation,
            f"{without_winner} of {HEATS} files had no winner or were incomplete",
            _OTHER_FOLDER_REMEDY,
        )
    return ok(operation, f"{RACERS} processes raced for {HEATS} files: each had one winner")


def _run_race(operation: str, folder: Path, racer: Path) -> Counter[int]:
    """Run a race and return how many winners each heat had."""
    command = [sys.executable, "-I", "-S", str(racer), operation, str(folder)]
    racers = [_start([*command, str(lane), str(HEATS)]) for lane in range(RACERS)]
    try:
        for process in racers:
            _read_line(process)
        for process in racers:
            _signal_start(process)
        return Counter(int(heat) for process in racers for heat in _read_won(process))
    finally:
        for process in racers:
            _end(process)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii"
    )


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _signal_start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _read_won(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=_WAIT_TIMEOUT_SECONDS)
    if process.returncode:
        raise OSError(f"a probing process ended with {process.returncode}")
    return output.split()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            assert pipe is not None
            pipe.close()


def probe_lock(folder: Path) -> Iterator[CheckResult]:
    """Check flock, which serializes the pushes of one id when dedupe is on."""
    path = folder / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        yield _judge_lock(first, second)
    finally:
        os.close(first)
        os.close(second)


def _judge_lock(first: int, second: int) -> CheckResult:
    no_dedupe = "do not use dedupe=True here; everything else works without locks"
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return warn("lock", f"flock does not work: {error.strerror}", no_dedupe)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ok("lock", "flock refuses a second lock")
    return warn("lock", "flock allows two locks at once", no_dedupe)
