"""Probes in a folder of doctor's own: races of real processes, locks and clocks.

Each takes the queue that it probes for, with that empty folder in the place of its own.

A queue relies on one thing only: that a rename and a link have one winner. In folders that
are synced by copying (sync programs, some network drives) two processes can win, and no
protocol on files can repair that.
"""

import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import BinaryIO

from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.server_clock import SAME_CLOCK_SECONDS, read_server_time
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.doctor.filesystem import FileQueue
from holdfast.doctor.racer import PAYLOAD

RACERS = 4
HEATS = 250
_WAIT_TIMEOUT_SECONDS = 60.0
_MAX_OFFSET_SECONDS = 5.0
_OTHER_FOLDER_REMEDY = (
    "do not use this folder with more than one process: choose one on a local disk or NFS"
)


# -- races


def race_renames(probe: FileQueue) -> Iterator[CheckResult]:
    """Check that every rename has one winner, which finds the file complete."""
    for heat in range(HEATS):
        (probe.folder / f"heat-{heat}").write_bytes(PAYLOAD)
    yield _judge_race(_run_race("rename", probe))


def race_links(probe: FileQueue) -> Iterator[CheckResult]:
    """Check that a link to an existing name is refused. Worker cards rely on it."""
    for lane in range(RACERS):
        (probe.folder / f"lane-{lane}").write_bytes(b"")
    try:
        os.link(probe.folder / "lane-0", probe.folder / "lane-probe")
    except OSError as error:
        yield fail(f"hard links do not work: {error.strerror}", "use another folder")
        return
    yield _judge_race(_run_race("link", probe))


def _judge_race(winners: Counter[int]) -> CheckResult:
    if twice := sum(1 for count in winners.values() if count > 1):
        return fail(f"{twice} of {HEATS} files were won by two processes", _OTHER_FOLDER_REMEDY)
    if without_winner := HEATS - len(winners):
        return fail(
            f"{without_winner} of {HEATS} files had no winner or were incomplete",
            _OTHER_FOLDER_REMEDY,
        )
    return ok(f"{RACERS} processes raced for {HEATS} files: each had one winner")


def _run_race(operation: str, probe: FileQueue) -> Counter[int]:
    """Run a race and return how many winners each heat had.

    All racers wait for the end of one pipe, so that closing it starts them at once.
    """
    command = [sys.executable, "-I", "-S", str(probe.racer), operation, str(probe.folder)]
    read_end, write_end = os.pipe()
    with ExitStack() as stack:
        start = stack.enter_context(open(write_end, "wb"))
        with open(read_end, "rb") as waiting:
            racers = [
                _start_racer(stack, [*command, str(lane), str(HEATS)], waiting)
                for lane in range(RACERS)
            ]
        for racer in racers:
            assert racer.stdout is not None
            racer.stdout.readline()  # it is ready
        start.close()
        return Counter(heat for racer in racers for heat in _read_won(racer))


def _start_racer(
    stack: ExitStack, command: Sequence[str], waiting: BinaryIO
) -> "subprocess.Popen[bytes]":
    racer = subprocess.Popen(command, stdin=waiting, stdout=subprocess.PIPE)
    stack.enter_context(racer)  # its exit waits for the process, so it is killed before
    stack.callback(racer.kill)
    return racer


def _read_won(racer: "subprocess.Popen[bytes]") -> list[int]:
    output, _ = racer.communicate(timeout=_WAIT_TIMEOUT_SECONDS)
    if racer.returncode:
        raise OSError(f"a probing process ended with {racer.returncode}")
    return [int(heat) for heat in output.split()]


# -- locks


def probe_lock(probe: FileQueue) -> Iterator[CheckResult]:
    """Check flock, which serializes the pushes of one id when dedupe is on."""
    path = probe.folder / "lock"
    with open(path, "wb") as first, open(path, "wb") as second:
        yield _judge_lock(first.fileno(), second.fileno())


def _judge_lock(first: int, second: int) -> CheckResult:
    no_dedupe = "do not use dedupe=True here; everything else works without locks"
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return warn(f"flock does not work: {error.strerror}", no_dedupe)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ok("flock refuses a second lock")
    return warn("flock allows two locks at once", no_dedupe)


# -- clocks


def check_clock(probe: FileQueue) -> Iterator[CheckResult]:
    """Compare the file server's clock with this host's.

    Leases need neither clock. Due times follow the file server's.
    """
    (probe.folder / "workers").mkdir()
    directory = QueueDirectory(probe.folder, probe.fs)
    try:
        before = probe.clock.time()
        server_now = read_server_time(directory)
        local_now = (before + probe.clock.time()) / 2
    finally:
        directory.close()
    yield _judge_offset(server_now - local_now)


def _judge_offset(ahead: float) -> CheckResult:
    if abs(ahead) < SAME_CLOCK_SECONDS:
        return ok("the file server's clock is this host's clock")
    direction = "ahead of" if ahead > 0 else "behind"
    text = f"the file server's clock is {abs(ahead):,.1f} s {direction} this host's"
    if abs(ahead) < _MAX_OFFSET_SECONDS:
        return ok(f"{text}; due times follow its clock, and leases need neither")
    return warn(
        f"{text}; due times follow its clock, and leases need neither, but displayed times "
        "may be wrong",
        "let NTP set both clocks",
    )


def check_time_grain(probe: FileQueue) -> Iterator[CheckResult]:
    """Stamp several files; whole seconds each time mean FAT, ext3 or some network shares."""
    stamps = []
    for number in range(3):
        path = probe.folder / f"stamp-{number}"
        path.write_bytes(b"")
        stamps.append(os.stat(path).st_mtime_ns)
    yield from judge_time_grain(stamps)


def judge_time_grain(stamps: Sequence[int]) -> Iterator[CheckResult]:
    """Yield a warning if all of these file times, in nanoseconds, are whole seconds."""
    if all(stamp % 1_000_000_000 == 0 for stamp in stamps):
        yield warn(
            "files are stamped in whole seconds here, so due times are off by up to a second, "
            "and processes may not see that they share a clock",
            "expect work of a killed process to come back up to one lease later, or move the "
            "queue to another filesystem",
        )


PROBES = (
    ("rename", race_renames),
    ("link", race_links),
    ("lock", probe_lock),
    ("clock", check_clock),
    ("clock", check_time_grain),
)
