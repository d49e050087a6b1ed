"""A disk that is full or fails: the verb raises QueueUnavailable, and nothing is half done."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import QueueUnavailable
from holdfast.testing import ManualClock
from support.files.crash import run_in_child
from support.files.queue_folder import LEASE, make_message
from support.files.scenarios import Scenario
from support.sqlite.disk import FOLDER, IOERR_FSYNC, Disk, Op, watch
from support.sqlite.queue_file import Queue, QueueFile, find_faults
from support.sqlite.queue_scenarios import ALL, Site, later

CLONE_NEWNS = 0x20000
SQLITE_FULL = 13


class FailingCall:
    """Fails the call of this number, and those after it as long as the disk `stays_full`."""

    def __init__(self, number: int, *, stays_full: bool) -> None:
        self._number, self._stays_full = number, stays_full
        self.count = 0

    def __call__(self, op: Op) -> int:
        if op.kind == "delete" or op.name == FOLDER:
            return 0
        self.count += 1
        if self.count == self._number or (self._stays_full and self.count > self._number):
            return IOERR_FSYNC if op.kind == "sync" else SQLITE_FULL
        return 0


def fail_at_each_call(folder: Path, scenario: Scenario, check: Callable[..., None]) -> int:
    """Let each call of the verb to the disk fail in turn; return how many there were."""
    number, reached = 0, True
    while reached:
        number += 1
        site = Site(folder / f"{number}", scenario)
        with watch(site.folder) as disk:
            ground = site.ground(ManualClock())
            queue = ground.queue(durability="power")
            prepared = scenario.prepare(ground, queue)
            failing = FailingCall(number, stays_full=bool(number % 2))
            error = act(disk, failing, lambda q=queue, p=prepared: scenario.act(q, p))
            reached = failing.count >= number
            # A poll that delivers other messages does not raise.
            assert bool(error) == reached or scenario.name == "claim all kinds"
            assert not error or "disk" in error
            check(site, queue, bool(error))
            queue.close()
    return number - 1


def act(disk: Disk, failing: FailingCall, verb: Callable[[], object]) -> str:
    """Return the text of the QueueUnavailable that the verb raised, or nothing."""
    disk.fail = failing
    try:
        verb()
    except QueueUnavailable as error:
        return str(error)
    finally:
        disk.fail = lambda op: 0
    return ""


def check_goes_on(site: Site, queue: Queue, raised: bool) -> None:
    """Check that the same queue goes on, and that a new worker finds all or nothing."""
    queue.push(make_message("after"))
    queue.poll(10)
    [info] = queue.find("after")
    assert info.state.value == "leased"
    scenario = site.scenario
    assert find_faults(queue._database.path) == []
    ends = {
        i: {after.ends, scenario.before[i].ends} if raised else {after.ends}
        for i, after in scenario.after.items()
    }
    queue = site.recover(later())
    for message_id, allowed in ends.items():
        assert site.fate(message_id, queue).ends in allowed


@pytest.mark.parametrize(
    "scenario", [s for s in ALL if not s.options.get("dedupe")], ids=lambda s: s.name
)
def test_a_verb_whose_disk_fails_has_happened_or_not(
    fast_path: Path, scenario: Scenario
) -> None:
    assert fail_at_each_call(fast_path, scenario, check_goes_on) >= 3


def test_a_claim_whose_disk_fails_holds_nothing_that_it_does_not_deliver(
    fast_path: Path,
) -> None:
    number, reached = 0, True
    while reached:
        number += 1
        with watch(fast_path / f"{number}") as disk:
            ground = QueueFile(fast_path / f"{number}")
            queue = ground.queue()
            queue.push(make_message("expired"))
            queue.poll()
            ground.clock.advance(LEASE + 1)
            queue.push(make_message("due"))
            failing = FailingCall(number, stays_full=True)
            error = act(disk, failing, lambda q=queue: q.poll(2))
            reached = failing.count >= number
            fences = [queue.find(message_id)[0].fence for message_id in ("expired", "due")]
            assert not error or fences == [1, 0]
            queue.close()


# -- a disk that is really full


def test_a_full_disk_stops_every_verb_until_there_is_space_again(fast_path: Path) -> None:
    def play(say: Callable[[str], None]) -> None:
        if why := mount_small_disk(fast_path):
            say(f"skip: {why}")
            return
        use_full_disk(QueueFile(fast_path))

    output = run_in_child(play).output
    if output.startswith("skip: "):
        pytest.skip(output.removeprefix("skip: "))


def mount_small_disk(folder: Path) -> str:
    """Mount in this process's own mount namespace; return why that fails, or nothing."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        return f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}"
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(folder)],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            return f"a small disk cannot be mounted here: {ran.stderr.strip()}"
    return ""


def use_full_disk(ground: QueueFile) -> None:
    queue, other = ground.queue(), ground.queue()
    queue.push_many([make_message(i) for i in "abcdef"])
    held = queue.poll(3)
    filler = ground.root / "filler"
    filler.write_bytes(bytes(300_000))
    pushed = push_until_full(queue)
    before = queue.stats()
    assert before.ready == 3 + pushed
    verbs: dict[str, Callable[[], Any]] = {
        "push": lambda: other.push(make_message("x", text="x" * 10_000)),
        "push_many": lambda: other.push_many([make_message(f"{n}") for n in range(200)]),
        "claim": lambda: other.poll(100),
        "ack": lambda: queue.ack_many(held),
        "nack": lambda: queue.nack(held[0]),
        "release": lambda: queue.release(held[1]),
        "dead_letter": lambda: queue.dead_letter(held[2], "no use"),
        "checkpoint": lambda: queue.save_checkpoint(held[0], "x" * 10_000),
    }
    for name, verb in verbs.items():
        with pytest.raises(QueueUnavailable, match="disk"):
            verb()
        assert queue.stats() == before, name
    filler.unlink()
    queue.ack(held[0])
    assert len(other.poll(3)) == 3
    assert find_faults(ground.path) == []
    assert (queue.stats().completed, queue.stats().leased) == (1, 5)


def push_until_full(queue: Queue) -> int:
    for number in range(1_000):
        try:
            queue.push(make_message(f"filler-{number}"))
        except QueueUnavailable:
            return number
    raise AssertionError("the disk never became full")
