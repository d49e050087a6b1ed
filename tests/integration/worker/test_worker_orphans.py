"""No work continues without its worker, however the worker ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import worker_parent as parent

from holdfast.queues.files import FilesystemQueue
from support.paths import make_child_environment
from support.waiting import wait_until
from support.workers.notes import Notes, is_alive
from support.workers.running import members

Start = Callable[..., "subprocess.Popen[str]"]

TIMEOUT_SECONDS = 60.0  # no step needs this long; it is for a busy machine


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def start(notes: Notes) -> Iterator[Start]:
    """Start a worker process, and kill what is left of it afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(mode: str, what: str, **plan: Any) -> "subprocess.Popen[str]":
        plan = {"lease_seconds": 600.0} | plan
        plan |= {"mode": mode, "what": what, "notes": str(notes.path)}
        process = subprocess.Popen(
            [sys.executable, parent.__file__, json.dumps(plan)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=make_child_environment(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
    for pid in (int(pid) for word in ("pid", "leaking") for pid in notes.values(word)):
        for victim in (*members(pid), pid):
            if is_alive(victim):
                os.kill(victim, signal.SIGKILL)
    for process in started:
        process.communicate(timeout=60)


@pytest.mark.parametrize("then", ["sleep", "hold_the_gil"])
def test_when_the_worker_is_killed_its_work_ends_with_all_it_started(
    start: Start, notes: Notes, then: str
) -> None:
    process = start("run", "have_children", then=then)
    wait_until(lambda: notes.values("sleeping") or notes.values("stuck"))
    child, started, forked = notes.pid(), notes.pid("started"), notes.pid("forked")
    assert {child, started, forked} < set(members(child))
    process.kill()
    wait_until(lambda: members(child) == [], TIMEOUT_SECONDS)


def test_when_the_worker_is_killed_idle_children_end(start: Start, notes: Notes) -> None:
    process = start("run", "finish")
    wait_until(lambda: notes.values("finished"))
    child = notes.pid()
    assert child in members(child)
    process.kill()
    wait_until(lambda: members(child) == [], TIMEOUT_SECONDS)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a child by itself")
def test_a_fork_that_holds_the_pipes_open_does_not_keep_the_work_running(
    start: Start, notes: Notes
) -> None:
    process = start("leak", "hold_the_gil")
    child, leaking = notes.pid(), notes.pid("leaking")
    process.kill()
    wait_until(lambda: not is_alive(child), TIMEOUT_SECONDS)
    assert is_alive(leaking)


def test_a_frozen_worker_cannot_keep_work_going_past_its_lease(
    start: Start, notes: Notes
) -> None:
    process = start("run", "sleep", lease_seconds=4.0)
    wait_until(lambda: notes.values("sleeping"))
    child = notes.pid()
    time.sleep(4.2)  # renewals reach the child, so it outlives its first deadline
    assert child in members(child)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: members(child) == [], 5.0 + TIMEOUT_SECONDS)


@pytest.mark.nightly
def test_a_frozen_worker_that_reads_nothing_cannot_keep_work_going_past_its_lease(
    start: Start, notes: Notes
) -> None:
    """The child is sending when the worker is frozen, and waits for room in its pipe."""
    process = start("run", "save_without_end", lease_seconds=5.0)
    wait_until(lambda: notes.values("sleeping"))
    child = notes.pid()
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: members(child) == [], 5.0 + TIMEOUT_SECONDS)


def test_a_script_without_a_main_guard_ends_with_a_hint_and_starts_no_further_processes(
    tmp_path: Path,
) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"with open({str(tmp_path / 'imports')!r}, 'a') as file: file.write('.')\n"
        "from holdfast.worker.worker import Worker\n"
        "from holdfast.testing import MemoryQueue\n"
        "Worker(MemoryQueue(), print, isolation='process').run(until_empty=True)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 1
    assert 'keep `if __name__ == "__main__":` around what a script runs' in done.stderr
    assert (tmp_path / "imports").read_text() == ".."  # the script, and its child


def test_only_the_worker_handles_ctrl_c_and_the_children_do_not_get_it(
    start: Start, notes: Notes
) -> None:
    process = start("run", "take_long", seconds=2.0)
    notes.pid()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "completed=1" in notes.values("report")[0]
    assert errors == ""


def test_children_that_are_just_starting_do_not_get_ctrl_c(
    start: Start, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW_CHILDREN", "1")
    process = start("run", "finish")
    wait_until(lambda: notes.values("running"))
    for _ in range(40):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" not in errors
    assert process.returncode == 0


def test_a_worker_that_adopts_orphans_reaps_them(start: Start, notes: Notes) -> None:
    settings = {"stall_seconds": 3.0, "kill_grace_seconds": 0.2}
    process = start("adopt", "have_children", then="sleep", settings=settings)
    process.communicate(timeout=60)
    assert notes.values("unreaped") == ["0"]


def test_a_program_that_never_stops_its_worker_still_ends(start: Start, notes: Notes) -> None:
    process = start("abandon", "sleep")
    process.communicate(timeout=60)
    assert process.returncode == 0
    wait_until(lambda: members(notes.pid()) == [], TIMEOUT_SECONDS)


@pytest.mark.requirement("R003-014")
def test_after_a_kill_the_message_is_back_within_one_lease_however_old_the_work(
    start: Start, notes: Notes, tmp_path: Path
) -> None:
    lease_seconds = 3.5
    root = str(tmp_path / "root")
    process = start("run", "sleep", lease_seconds=lease_seconds, root=root)
    wait_until(lambda: notes.values("sleeping"))
    time.sleep(1.3 * lease_seconds)
    queue = FilesystemQueue(root)
    assert queue.poll() == []  # it was held the whole time
    process.kill()
    process.wait()
    killed_at = datetime.now(UTC)
    [view] = queue.find("m")
    assert view.holder is not None
    assert view.holder.expires_at <= killed_at + timedelta(seconds=lease_seconds)
    [message] = wait_until(lambda: queue.poll(wait_seconds=1.0))
    assert message.attempts == 2


_REAPS_NO_ORPHANS = """
import ctypes, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans below are its children now
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""
_KILLS_A_GROUP = """
import os, time
from holdfast.process.process_group import is_group_gone, kill_group
ready, tell = os.pipe()
leader = os.fork()
if not leader:
    os.setsid()
    if not os.fork():
        os.write(tell, b"!")
        time.sleep(600)
    os.read(ready, 1)
    os._exit(0)
os.waitpid(leader, 0)
assert not is_group_gone(leader), "a member lives"
kill_group(leader)
until = time.monotonic() + 30
while not is_group_gone(leader):
    assert time.monotonic() < until, "dead members count as living"
    time.sleep(0.001)
os.killpg(leader, 0)  # the dead member is still there
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows whether a process is dead")
def test_a_group_of_dead_processes_is_gone_even_if_no_process_reaps_them() -> None:
    """Process 1 of some containers reaps seconds later, or never. Each end waited for it."""
    subprocess.run(
        [sys.executable, "-c", _REAPS_NO_ORPHANS, _KILLS_A_GROUP],
        check=True,
        timeout=TIMEOUT_SECONDS,
        env=make_child_environment(),
    )
