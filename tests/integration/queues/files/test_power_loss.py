"""`durability="power"`: after a power cut at any call, every verb that returned still holds.

One disk keeps as little as it may, and another keeps all entries but no unsynced bytes. On
both, a new worker finds what push, ack, nack, release, dead_letter, redrive and
save_checkpoint promised (ADR 4). Claims and renewals may be undone.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.clock import ManualClock
from support.files import audit
from support.files.power_loss import ForgetfulFs, Image, restore
from support.files.queue_folder import LEASE, Ground, Queue, make_clock, make_message
from support.files.scenarios import ABSENT, SCENARIOS, Fate, Scenario
from support.files.watched import WatchedFs

LATER_SECONDS = 2_000.0
PROMISED = {
    scenario.name: scenario
    for scenario in SCENARIOS
    if scenario.name.split()[0]
    in (
        "push",
        "push_many",
        "ack",
        "nack",
        "release",
        "dead_letter",
        "redrive",
        "save_checkpoint",
    )
}
every_promise = pytest.mark.parametrize("scenario", PROMISED.values(), ids=lambda s: s.name)


@dataclass(frozen=True)
class Remains:
    """One possible disk after the cut, and whether the verb had returned."""

    description: str
    image: Image
    returned: bool


def play(
    folder: Path,
    scenario: Scenario,
    *,
    atomic_renames: bool = True,
    deaf_to: Callable[[str], bool] = lambda path: False,
) -> tuple[ForgetfulFs, list[Remains]]:
    """Act once; return all disks that a power cut could leave, each once."""
    clock = make_clock()
    ground = Ground(folder, clock, durability="power", **scenario.options)
    fs = ForgetfulFs(clock.time, ground.folder, atomic_renames=atomic_renames, deaf_to=deaf_to)
    queue = ground.queue(fs)
    prepared = scenario.prepare(ground, queue)
    fs.arm()
    scenario.act(queue, prepared)
    return fs, list(_remains(fs))


def _remains(fs: ForgetfulFs) -> Iterator[Remains]:
    seen: list[tuple[Image, bool]] = []
    for number, cut in enumerate(fs.cuts, 1):
        returned = number == len(fs.cuts)
        for image in (cut.least, cut.most):
            if (image, returned) not in seen:
                seen.append((image, returned))
                yield Remains(f"after call {number}, {cut.call}", image, returned)


def check(folder: Path, scenario: Scenario, remains: Remains) -> None:
    """Check what a new worker finds on the disk."""
    clock = make_clock()
    clock.advance(LATER_SECONDS)
    ground = Ground(folder, clock, **scenario.options)
    restore(remains.image, ground.folder)
    assert audit.find_faults(ground.folder) == {}, remains.description
    queue = ground.queue()
    attempts, checkpoints = work(queue, clock)
    for message_id, after in scenario.after.items():
        allowed = {after} if remains.returned else {after, scenario.before[message_id]}
        assert fate(queue, message_id, attempts) in allowed, remains.description
    if remains.returned and scenario.checkpoint is not None:
        assert checkpoints == {"a": scenario.checkpoint}


def work(queue: Queue, clock: ManualClock) -> tuple[dict[str, int], dict[str, object]]:
    attempts, checkpoints = {}, {}
    for _ in range(3):
        for message in queue.poll(10):
            attempts[message.id] = message.attempts
            checkpoints[message.id] = queue.load_checkpoint(message)
            queue.ack(message)
        clock.advance(LEASE + 1.0)  # a lease that has to be watched is taken over, too
    return attempts, checkpoints


def fate(queue: Queue, message_id: str, attempts: dict[str, int]) -> Fate:
    views = queue.find(message_id)
    assert len(views) <= 1
    return Fate(attempts.get(message_id), views[0].state.value) if views else ABSENT


def check_all(folder: Path, scenario: Scenario, all_remains: list[Remains]) -> None:
    for number, remains in enumerate(all_remains):
        check(folder / str(number), scenario, remains)


@every_promise
def test_what_had_returned_survives_a_power_cut(fast_path: Path, scenario: Scenario) -> None:
    _, all_remains = play(fast_path / "play", scenario)
    assert all_remains
    check_all(fast_path, scenario, all_remains)


def dead_twice(ground: Ground, queue: Queue) -> None:
    """Prepare two dead letters of one id; the first, which lost its id, will be redriven."""
    for _ in range(2):
        queue.push(make_message("a"))
        queue.dead_letter(queue.poll()[0], "no use")


DEDUPED = {s.name: s for s in PROMISED.values() if s.options.get("dedupe")}
DEDUPED["take an id back"] = replace(DEDUPED["redrive with dedupe"], prepare=dead_twice)


@pytest.mark.parametrize("scenario", DEDUPED.values(), ids=DEDUPED)
def test_an_id_that_is_taken_is_taken_after_a_power_cut(
    fast_path: Path, scenario: Scenario
) -> None:
    """A free id stays free, too: a push leaves one live task, whatever was interrupted."""
    _, all_remains = play(fast_path / "play", scenario)
    check_ids(fast_path, all_remains)


def check_ids(folder: Path, all_remains: list[Remains]) -> None:
    for number, remains in enumerate(all_remains):
        ground = Ground(folder / str(number), dedupe=True)
        restore(remains.image, ground.folder)
        queue = ground.queue()
        # The check of records would repair what this test looks for.
        queue._producer._record_check._due_at = float("inf")
        queue.push(make_message("a"))
        states = [state for state, _, _ in audit.list_tasks(ground.folder) if state != "failed"]
        assert len(states) == 1, remains.description


NEEDED_BY_IDS = [
    ("push with dedupe", "tmp"),
    ("push with dedupe", "ids"),
    ("dead_letter with dedupe", "ids"),
    ("take an id back", "ids"),
]


@pytest.mark.parametrize(("name", "deaf"), NEEDED_BY_IDS)
def test_an_id_is_lost_or_blocked_without_the_sync_of(
    fast_path: Path, name: str, deaf: str
) -> None:
    fs, all_remains = play(fast_path / "play", DEDUPED[name], deaf_to=is_in(deaf))
    assert deaf in fs.synced, "the code does not ask for it"
    with pytest.raises(AssertionError):
        check_ids(fast_path, all_remains)


# -- each sync is needed


def is_in(folder: str) -> Callable[[str], bool]:
    """Match a file or folder inside the folder; "pending/" does not match `pending` itself."""
    return lambda path: path.startswith(folder) if folder[-1] == "/" else path == folder


NEEDED = [
    ("push", "tmp/"),
    ("push", "pending/"),
    ("push", "pending"),
    ("push_many", "tmp/"),
    ("push_many", "pending"),
    ("push with dedupe", "tmp/"),
    ("push with dedupe", "pending/"),
    ("push with dedupe", "pending"),
    ("ack", "completed"),
    ("nack", "pending"),
    ("release", "pending/"),
    ("release", "pending"),
    ("dead_letter", "tmp/"),
    ("dead_letter", "failed"),
    ("redrive", "pending/"),
    ("redrive", "pending"),
    ("save_checkpoint", "tmp/"),
    ("save_checkpoint", "checkpoints"),
    ("save_checkpoint", "checkpoints/"),
]


@pytest.mark.parametrize(("name", "deaf"), NEEDED)
def test_a_promise_breaks_without_the_sync_of(fast_path: Path, name: str, deaf: str) -> None:
    scenario = PROMISED[name]
    fs, all_remains = play(fast_path / "play", scenario, deaf_to=is_in(deaf))
    assert any(map(is_in(deaf), fs.synced)), "the code does not ask for it"
    with pytest.raises(AssertionError):
        check_all(fast_path, scenario, all_remains)


# -- disks that keep half a rename

TORN = [
    ("ack", ("completed/", "completed", "leased")),
    ("dead_letter", ("tmp/", "failed", "leased")),
]


@pytest.mark.parametrize(("name", "needed"), TORN)
def test_what_had_returned_survives_on_a_disk_that_tears_renames(
    fast_path: Path, name: str, needed: tuple[str, ...]
) -> None:
    scenario = PROMISED[name]
    _, all_remains = play(fast_path / "play", scenario, atomic_renames=False)
    check_all(fast_path, scenario, [r for r in all_remains if r.returned])


@pytest.mark.parametrize(("name", "deaf"), [(n, deaf) for n, all_ in TORN for deaf in all_])
def test_a_promise_breaks_on_a_disk_that_tears_renames_without_the_sync_of(
    fast_path: Path, name: str, deaf: str
) -> None:
    scenario = PROMISED[name]
    _, all_remains = play(
        fast_path / "play", scenario, atomic_renames=False, deaf_to=is_in(deaf)
    )
    with pytest.raises(AssertionError):
        check_all(fast_path, scenario, [r for r in all_remains if r.returned])


# -- a new queue


class SyncCounting(WatchedFs):
    def __init__(self, server_time: Callable[[], float]) -> None:
        super().__init__(server_time)
        self.inodes: set[int] = set()

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "fsync":
            self.inodes.add(os.fstat(args[0]).st_ino)
        return real(*args, **kwargs)


def test_the_folders_of_a_new_queue_are_on_the_disk_when_its_first_push_returns(
    fast_path: Path,
) -> None:
    ground = Ground(fast_path / "new", durability="power")
    fs = SyncCounting(ground.clock.time)
    ground.queue(fs).push(make_message("a"))
    made = [fast_path, *list(ground.folder.parents)[:3], ground.folder]
    assert {folder.stat().st_ino for folder in made} <= fs.inodes
