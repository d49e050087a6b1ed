"""`durability="power"`: after a power cut at any call, every verb that returned still holds.

One disk keeps as little as it may, and another keeps all entries but no unsynced bytes. On
both, a new worker finds what push, ack, nack, release, dead_letter, redrive and
save_checkpoint promised (ADR 4). Claims and renewals may be undone.

The disk: bytes survive once their file was synced, and entries once their folder was. A rename
is one change to two folders. Journalling file systems never tear it, so syncing either folder
keeps it. (`atomic_renames=False` is a disk that does tear it.) A change that was not synced may
be lost or may survive.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.files import audit
from support.files.queue_folder import Ground, Queue, make_clock, make_message
from support.files.scenarios import SCENARIOS, Scenario, find_fate, work
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


# -- the disk


@dataclass(eq=False)
class Node:
    """A file or a folder, independent of its name."""

    is_folder: bool
    data: bytes = b""
    synced: bytes = b""
    text: str | None = None  # of a symlink, which is on the disk with its entry


Entries = dict[str, Node]


@dataclass
class Change:
    """Entries that came (a node) or went (None), and the folders that must be synced."""

    entries: dict[str, Node | None]
    folders: frozenset[str]
    durable: bool = False
    moved: tuple[str, str] | None = None  # a folder, with its contents at that time

    def apply(self, to: Entries) -> None:
        if self.moved:
            source, target = self.moved
            for path in [p for p in to if p.startswith(f"{source}/")]:
                to[target + path.removeprefix(source)] = to.pop(path)
        for path, node in self.entries.items():
            if node is None:
                to.pop(path, None)
            else:
                to[path] = node


class Entry(NamedTuple):
    """A name on the disk. The same number is the same file under two names."""

    number: int
    data: bytes | None  # None: a folder
    text: str | None = None  # of a symlink


Image = dict[str, Entry]


class ForgetfulFs(WatchedFs):
    """Performs all calls, and records which changes are durable.

    `deaf_to(path)`: a sync of that path is ignored, as if the code had not called it.
    """

    def __init__(
        self,
        server_time: Callable[[], float],
        folder: Path,
        *,
        atomic_renames: bool = True,
        deaf_to: Callable[[str], bool] = lambda path: False,
    ) -> None:
        super().__init__(server_time)
        self._folder, self._deaf_to = folder, deaf_to
        self._atomic_renames = atomic_renames
        self._paths: dict[int, str] = {}  # of open files
        self._there: Entries = {}
        self._base: Entries = {}
        self._changes: list[Change] = []
        self._is_armed = False
        self.cuts: list[tuple[str, Image]] = []
        """After each call, the least and the most that the disk holds if the power fails."""
        self.synced: set[str] = set()

    def arm(self) -> None:
        """Start recording. What exists now is on the disk."""
        self._there = _entries(self._folder)
        self._base = dict(self._there)
        self._is_armed = True

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        record = getattr(self, f"record_{name}", None)
        if self._is_armed and record:
            record(result, *args)
            durable = [change for change in self._changes if change.durable]
            self.cuts += [(name, self._image(kept)) for kept in (durable, self._changes)]
        return result

    # -- how each call changes the record

    def record_open(self, fd: int, path: str, flags: int, *_: object) -> None:
        self._paths[fd] = path
        if path not in self._there and flags & os.O_CREAT:
            self._change({path: Node(is_folder=False)}, path)

    def record_write(self, count: int, fd: int, data: bytes) -> None:
        self._there[self._paths[fd]].data += bytes(data[:count])

    def record_fsync(self, _: None, fd: int) -> None:
        path = self._paths[fd]
        self.synced.add(path)
        if self._deaf_to(path):
            return
        node = self._there[path]
        node.synced = node.data
        for change in self._changes:
            change.durable = change.durable or path in change.folders

    def record_rename(self, _: None, source: str, target: str) -> None:
        node = self._there[source]
        if node.is_folder:  # no disk tears that: its own ".." would have to be torn, too
            self._change({source: None, target: node}, source, target, moved=(source, target))
        elif self._atomic_renames:
            self._change({source: None, target: node}, source, target)
        else:
            self._change({target: node}, target)
            self._change({source: None}, source)

    def record_link(self, _: None, source: str, target: str) -> None:
        self._change({target: self._there[source]}, target)

    def record_symlink(self, _: None, text: str, path: str) -> None:
        self._change({path: Node(is_folder=False, text=text)}, path)

    def record_unlink(self, _: None, path: str) -> None:
        self._change({path: None}, path)

    record_rmdir = record_unlink

    def record_mkdir(self, _: None, path: str, *__: object) -> None:
        self._change({path: Node(is_folder=True)}, path)

    def _change(
        self,
        entries: dict[str, Node | None],
        *paths: str,
        moved: tuple[str, str] | None = None,
    ) -> None:
        change = Change(entries, frozenset(map(os.path.dirname, paths)), moved=moved)
        change.apply(self._there)
        self._changes.append(change)

    def _image(self, changes: Iterable[Change]) -> Image:
        entries = dict(self._base)
        for change in changes:
            change.apply(entries)
        return {
            path: Entry(id(node), None if node.is_folder else node.synced, node.text)
            for path, node in entries.items()
        }


def _entries(folder: Path) -> Entries:
    nodes: dict[int, Node] = {}
    entries: Entries = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            node = Node(is_folder=False, text=os.readlink(path))
        else:
            data = b"" if path.is_dir() else path.read_bytes()
            node = nodes.setdefault(path.stat().st_ino, Node(path.is_dir(), data, data))
        entries[str(path.relative_to(folder))] = node
    return entries


def restore(image: Image, folder: Path) -> None:
    """Write the image to a folder. The contents of a lost folder are lost."""
    folder.mkdir(parents=True)
    first: dict[int, Path] = {}
    for name, entry in sorted(image.items()):
        path = folder / name
        if not path.parent.is_dir():
            continue
        if entry.data is None:
            path.mkdir()
        elif entry.text is not None:
            path.symlink_to(entry.text)
        elif entry.number in first:
            os.link(first[entry.number], path)
        else:
            path.write_bytes(entry.data)
            first[entry.number] = path


# -- the promises


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
    for number, (call, image) in enumerate(fs.cuts):
        returned = number >= len(fs.cuts) - 2
        if (image, returned) not in seen:
            seen.append((image, returned))
            yield Remains(f"after call {number // 2 + 1}, {call}", image, returned)


def check(folder: Path, scenario: Scenario, remains: Remains) -> None:
    """Check what a new worker finds on the disk."""
    clock = make_clock()
    clock.advance(LATER_SECONDS)
    ground = Ground(folder, clock, **scenario.options)
    restore(remains.image, ground.folder)
    assert audit.find_faults(ground.folder) == {}, remains.description
    queue = ground.queue()
    done = work(queue, clock)
    for message_id, after in scenario.after.items():
        allowed = {after} if remains.returned else {after, scenario.before[message_id]}
        assert find_fate(queue, message_id, done) in allowed, remains.description
    if remains.returned and scenario.checkpoint is not None:
        assert done["a"][1] == scenario.checkpoint


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
        queue._housekeeping._id_check_at = float("inf")
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


def test_a_queue_in_a_relative_folder_is_synced_too(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fast_path)
    ground = Ground(Path("new"), durability="power")
    fs = SyncCounting(ground.clock.time)
    ground.queue(fs).push(make_message("a"))
    made = [Path(), *list(ground.folder.parents)[:3], ground.folder]
    assert {folder.stat().st_ino for folder in made} <= fs.inodes
