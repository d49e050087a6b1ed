"""exports: fetch many small files and some large ones over loopback, check and store them."""

import hashlib
import os
import resource
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from threading import Event, Thread
from time import monotonic

from bench.exports_players import ARIA2, BARE, CURL, HOLDFAST, PLAYERS, SCRIPT, File, Player
from bench.files_server import serving
from bench.session import Session
from bench.verdict import Bar, Chart, Result, ratio

NAME = "exports"
TITLE = "Export: files fetched, checked and stored"
WAIT_TIMEOUT_SECONDS = 300.0
_POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """A number of files of one size."""

    name: str
    count: int
    size: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Fetch:
    """The time and the memory of one fetch."""

    seconds: float
    cpu_seconds: float  # of all its processes, without the server
    peak_mib: float  # of all its processes, with shared memory counted once


# What Holdfast needs to start and to end: its time for one small file.
START = Load("one file", 1, 64 << 10)

Measured = Mapping[tuple[Load, Player], Sequence[Fetch]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    loads = (
        Load("2,000 × 64 KiB", session.size(2_000, 300), 64 << 10),
        Load("20 × 64 MiB", session.size(20, 4), 64 << 20),
    )
    players = [player for player in PLAYERS if player.is_installed]
    measured: dict[tuple[Load, Player], list[Fetch]] = defaultdict(list)
    www, scratch = session.scratch / "www", session.scratch / "exports"
    scratch.mkdir(parents=True)
    files = {load: _make_files(load, www) for load in loads}
    files[START] = files[loads[0]][:1]
    with serving(www, scratch) as server:
        pairs = [(load, player) for load in loads for player in players]
        pairs.append((START, HOLDFAST))
        for load, player in session.interleaved(TITLE, pairs):
            located = [
                replace(file, url=f"{server.address}/{file.url}") for file in files[load]
            ]
            with session.arena.room(str(player)) as room:
                measured[load, player].append(_measure_fetch(player, located, room, scratch))
    shutil.rmtree(www)
    return _result(measured, loads, players, server.name)


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


def _measure_fetch(player: Player, files: Sequence[File], room: Path, scratch: Path) -> Fetch:
    to = room / "to"
    to.mkdir()
    commands = player.prepare(files, scratch, to)
    os.sync()  # or this player would pay for the last one's unwritten data
    began, used = monotonic(), _read_cpu_seconds()
    peaks = [_peak_mib(command) for command in commands]
    seconds, used = monotonic() - began, _read_cpu_seconds() - used
    assert all((to / file.name).exists() for file in files), f"{player} left files out"
    return Fetch(seconds, used, max(peaks))


def _read_cpu_seconds() -> float:
    """Return the CPU time of all children that ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family = {leader}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(map(_pss_kib, family)) / 1024


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _result(
    measured: Measured, loads: Sequence[Load], players: Sequence[Player], server: str
) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            *(column for load in loads for column in (f"{load}, s", "CPU, s")),
            "all, s",
            "MiB/s, large",
            "memory, MiB",
        ),
        rows=[_row(measured, loads, player) for player in players],
        bars=_bars(measured, loads, players),
        notes=(
            f"Served by {server} on the same two cores. Each is timed as a command, from its "
            "start to its end, with SHA-256 of every file compared to what it must be: "
            + "; ".join(f"{player}: {player.setup}" for player in players)
            + ".",
            "Holdfast also records each file, so that a kill at any moment "
            "costs no finished file, publishes each by a rename, and checks every address it "
            "connects to; the others do none of these.",
            "For one small file, from its start to its end, Holdfast takes "
            f"{median(_seconds(measured, START, HOLDFAST)):.2f} s and "
            f"{median(_cpu_seconds(measured, START, HOLDFAST)):.2f} s of CPU.",
            "CPU and memory (at its highest, large files) are those of all processes of a "
            "command, without the server.",
        ),
        charts=[_chart(measured, loads, players)],
    )


def _seconds(measured: Measured, load: Load, player: Player) -> list[float]:
    return [fetch.seconds for fetch in measured[load, player]]


def _cpu_seconds(measured: Measured, load: Load, player: Player) -> list[float]:
    return [fetch.cpu_seconds for fetch in measured[load, player]]


def _totals(measured: Measured, loads: Sequence[Load], player: Player) -> list[float]:
    """Return the seconds for all files in each round."""
    return [
        sum(times)
        for times in zip(*(_seconds(measured, load, player) for load in loads), strict=True)
    ]


def _row(measured: Measured, loads: Sequence[Load], player: Player) -> list[str]:
    large = loads[-1]
    pace = large.count * large.size / (1 << 20) / median(_seconds(measured, large, player))
    peak = max(fetch.peak_mib for fetch in measured[large, player])
    times = [
        f"{median(figures):.2f}"
        for load in loads
        for figures in (_seconds(measured, load, player), _cpu_seconds(measured, load, player))
    ]
    total = f"{median(_totals(measured, loads, player)):.2f}"
    return [str(player), *times, total, f"{pace:,.0f}", f"{peak:,.0f}"]


def _bars(measured: Measured, loads: Sequence[Load], players: Sequence[Player]) -> list[Bar]:
    small, large = loads

    def against(player: Player, load: Load) -> float:
        return ratio(_seconds(measured, load, player), _seconds(measured, load, HOLDFAST))

    def explain_bound(player: Player, load: Load) -> str:
        start, bare = _seconds(measured, START, HOLDFAST), _seconds(measured, load, BARE)
        least = [sum(times) for times in zip(start, bare, strict=True)]
        cpu = ratio(
            _cpu_seconds(measured, load, HOLDFAST), _cpu_seconds(measured, load, player)
        )
        return (
            f"measured bound: the start for one file ({median(start):.2f} s) and {BARE} "
            f"({median(bare):.2f} s) together reach "
            f"{ratio(_seconds(measured, load, player), least):.2f} ×; with records, checks and "
            f"isolation, Holdfast uses {cpu:.2f} × the CPU of {player}"
        )

    holdfast, script = _totals(measured, loads, HOLDFAST), _totals(measured, loads, SCRIPT)
    bars = [
        Bar("ahead of the script, all files", ratio(script, holdfast), 1.0, "×"),
        Bar("ahead of the script, small files", against(SCRIPT, small), 1.0, "×", aim=True),
        Bar(
            "ahead of the script, large files",
            against(SCRIPT, large),
            1.0,
            "×",
            bound=explain_bound(SCRIPT, large),
        ),
    ]
    tools = [player for player in (CURL, ARIA2) if player in players]
    if tools:
        best = min(tools, key=lambda player: median(_seconds(measured, large, player)))
        slower = 1 / against(best, large)
        bars.append(Bar(f"time against {best}, large files", slower, 1.3, "×", at_least=False))
    if CURL in tools:
        bars.append(
            Bar(
                f"speed against {CURL}, small files",
                against(CURL, small),
                0.8,
                "×",
                bound=explain_bound(CURL, small),
            )
        )
    if ARIA2 in tools:
        bars.append(
            Bar(f"ahead of {ARIA2}, small files", against(ARIA2, small), 1.0, "×", aim=True)
        )
    peak = max(fetch.peak_mib for load in loads for fetch in measured[load, HOLDFAST])
    bars.append(Bar("memory of the whole service", peak, 400.0, "MiB", at_least=False))
    return bars


def _chart(measured: Measured, loads: Sequence[Load], players: Sequence[Player]) -> Chart:
    values = {
        str(player): [median(_seconds(measured, load, player)) for load in loads]
        for player in players
    }
    return Chart("Export: seconds, lower is better", "seconds", [*map(str, loads)], values)
