"""Bad ids, names, numbers and files lead to a clear error, and nothing is lost."""

import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.doctor.file_queue import examine_file_queue
from holdfast.doctor.filesystem import FileQueue
from holdfast.errors import (
    HoldfastError,
    InvalidName,
    MessageTooLarge,
    QueueUnavailable,
)
from holdfast.queue.manager import MessageState
from holdfast.queues.files import FilesystemQueue
from holdfast.queues.files.layout import FOLDERS
from support.files import audit
from support.files.crash import run_in_child
from support.files.foreign_files import (
    KEY,
    KINDS,
    outside_of,
    snapshot,
)
from support.files.queue_folder import (
    LEASE,
    MUCH_LATER,
    Ground,
    Queue,
    drain,
    get_key,
    make_message,
)
from support.files.watched import CountingFs
from support.fork_server import run_in_small_child

HANGS_AFTER_SECONDS = 10.0

# For each folder, names that the protocol itself might have written.
WELL_FORMED = {
    "pending": ["1700000000000-ab12-0"],
    "pending/1700000000001-ab12-0": [f"{KEY}~0~1700000000001.json"],
    "leased": [
        f"{KEY}~1~abcdef~1700000000000+0+1000.json",
        f"{KEY}~1~abcdef~1700000000000+1000.json",
    ],
    "completed": ["2020-01-01T00"],
    "completed/2020-01-01T01": [f"{KEY}~1~abcdef~1577840400000.json"],
    "failed": [f"{KEY}~1.json", f"{KEY}~1.reason.json"],
    "checkpoints": [KEY],
    f"checkpoints/{KEY}": ["1.json"],
    "history": [f"{KEY}.jsonl"],
    "workers": ["abcdef.json", ".clock"],
    "ids": ["0" * 40, ".turn-94"],
    "tmp": [KEY],
}
ILL_FORMED = ["notes.txt", "~~~.json", ".hidden", "sp ace\n.json", "ünïcode.json", "x" * 255]

IDS = {
    "slash": "a/b",
    "absolute": "/etc/passwd",
    "parent": "../../../../etc/x",
    "dot": ".",
    "dots": "..",
    "NUL": "a\0b",
    "newline": "a\nb",
    "tilde": "a~0~1.json",
    "dash": "-rf",
    "space": " ",
    "300": "x" * 300,
    "512": "x" * 512,
    "emoji": "🧗" * 128,
    "Arabic": "مرحبا",
    "composed": "é",
    "combining": "e\u0301",
    "upper": "TASK",
    "lower": "task",
    "right to left": "\u202etxt.exe",
    "percent": "%2e%2e%2f",
}


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path / "root")


# -- ids


@pytest.mark.parametrize("dedupe", [False, True], ids=["", "dedupe"])
@pytest.mark.parametrize("message_id", IDS.values(), ids=IDS)
def test_any_text_is_an_id_and_stays_in_its_folder(
    fast_path: Path, ground: Ground, message_id: str, dedupe: bool
) -> None:
    queue = ground.queue(dedupe=dedupe)
    before = snapshot_outside(fast_path, ground)
    queue.push(make_message(message_id, text="first"))
    queue.dead_letter(queue.poll()[0], "no use")
    assert [view.id for view in queue.find(message_id)] == [message_id]
    assert queue.redrive(message_id) == 1
    queue.nack(queue.poll()[0], delay_seconds=0)
    [message] = queue.poll()
    assert (message.id, message.text) == (message_id, "first")
    queue.save_checkpoint(message, 1)
    queue.ack(message)
    assert snapshot_outside(fast_path, ground) == before
    assert audit.find_faults(ground.folder) == {}


def snapshot_outside(parent: Path, ground: Ground) -> object:
    below = str(ground.folder.relative_to(parent))
    return {n: v for n, v in snapshot(parent).items() if not n.startswith(below)}


def test_ids_that_look_alike_are_different(ground: Ground) -> None:
    queue = ground.queue(dedupe=True)
    queue.push_many([make_message(message_id) for message_id in IDS.values()])
    assert sorted(m.id for m in queue.poll(100)) == sorted(IDS.values())


@pytest.mark.parametrize("message_id", ["", "x" * 513])
def test_an_id_is_1_to_512_characters(message_id: str) -> None:
    with pytest.raises(ValidationError):
        make_message(message_id)


def test_a_lone_surrogate_is_not_an_id(ground: Ground) -> None:
    queue = ground.queue()
    with pytest.raises((HoldfastError, ValidationError)):
        queue.push(make_message("\ud800"))
    assert audit.find_residue(ground.folder) == []
    assert queue.poll() == []


# -- names


@pytest.mark.parametrize("kind", ["campaign", "queue"])
@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "/etc", "../up", "a..b", "-rf", "~", "a\0b", "a\nb", "a\n"),
        *(" a", "ä", "🧗", "x" * 65, "x" * 300, "con:", "a*b", ".hidden"),
    ],
)
def test_a_hostile_name_is_refused_and_makes_nothing(
    fast_path: Path, kind: str, name: str
) -> None:
    options: dict[str, Any] = {kind: name}
    with pytest.raises(InvalidName, match=kind):
        FilesystemQueue(fast_path / "root", **options)
    assert list(fast_path.iterdir()) == []


# -- sizes and numbers


def test_a_payload_over_a_mebibyte_is_refused(ground: Ground) -> None:
    queue = ground.queue()
    good = make_message("good")
    with pytest.raises(MessageTooLarge, match="1,048,576"):
        queue.push_many([good, make_message("big", text="x" * 2**20)])
    assert queue.poll() == []
    assert audit.find_residue(ground.folder) == []


@pytest.mark.parametrize("delay", [math.inf, math.nan, 1e12, 1e300])
def test_a_delay_that_no_name_can_carry_is_refused(ground: Ground, delay: float) -> None:
    queue = ground.queue()
    with pytest.raises(ValueError, match="delay"):
        queue.push(make_message("a"), delay_seconds=delay)
    assert (queue.stats().delayed, queue.stats().foreign) == (0, 0)


def test_a_negative_delay_counts_as_zero(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"), delay_seconds=-5)
    assert drain(queue) == [("a", 1)]


@pytest.mark.parametrize("seconds", [-1.0, -1e9, math.inf, math.nan, 1e15])
def test_an_extension_that_no_name_can_carry_never_loses_the_task(
    ground: Ground, seconds: float
) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    ground.clock.advance(0.5)
    with pytest.raises((ValueError, HoldfastError)):
        queue.extend(message, seconds)
    ground.clock.advance(2 * LEASE)
    assert drain(ground.queue()) == [("a", 2)]


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e13])
def test_a_lease_that_no_name_can_carry_is_refused(fast_path: Path, seconds: float) -> None:
    with pytest.raises((ValueError, HoldfastError)):
        FilesystemQueue(fast_path / "root", lease_seconds=seconds)


# -- litter

CASES = [
    (folder, name, kind)
    for folder, well_formed in WELL_FORMED.items()
    for name in [*well_formed, ILL_FORMED[0], ILL_FORMED[1]]
    for kind in KINDS
] + [(folder, name, "text") for folder in WELL_FORMED for name in ILL_FORMED[2:]]


@pytest.mark.parametrize("folder", WELL_FORMED)
def test_workers_go_on_among_litter_in(fast_path: Path, folder: str) -> None:
    failures = []
    for number, (name, kind) in enumerate((n, k) for f, n, k in CASES if f == folder):
        ground = Ground(fast_path / str(number) / "root")
        outside = outside_of(fast_path / str(number))
        try:
            play = partial(work_among_litter, ground.root, outside, folder, name, kind)
            run_in_small_child(play, HANGS_AFTER_SECONDS)
        except AssertionError as error:
            why = [line for line in str(error).splitlines() if "Error" in line] or [str(error)]
            failures.append(f"{kind} called {name[:40]!r}: {why[-1]}")
        shutil.rmtree(fast_path / str(number))
    assert failures == []


def work_among_litter(
    root: Path, outside: Path, folder: str, name: str, kind: str, say: Callable[[str], None]
) -> None:
    ground = Ground(root)
    ground.queue().push(make_message("early"))
    (ground.folder / folder).mkdir(exist_ok=True)
    path = ground.folder / folder / name
    path.unlink(missing_ok=True)
    KINDS[kind](path, outside)
    inode, outside_before = path.lstat().st_ino, snapshot(outside)
    refuses = name.startswith(".turn")  # without the id lock, a producer must not push
    with suppress(*[QueueUnavailable] * refuses):
        all_verbs(ground)
    assert snapshot(outside) == outside_before, "something outside was touched"
    if not may_be_removed(folder, name):
        check_litter(ground, inode)


def all_verbs(ground: Ground) -> None:
    """Use all verbs of a queue once, and check that all of its work gets done."""
    queue = ground.queue(dedupe=True)
    queue.push_many([make_message("a"), make_message("b"), make_message("c")])
    done: set[str] = set()
    for _ in range(4):
        for message in queue.poll(10):
            queue.extend(message)
            queue.save_checkpoint(message, 1)
            if message.attempts == 1:
                queue.nack(message, delay_seconds=0)
            elif message.id == "b" and "b" not in done:
                queue.dead_letter(message, "no use")
                done.add("b")
            else:
                queue.ack(message)
                done.add(message.id)
        queue.redrive("b")
        ground.clock.advance(2 * LEASE)
    assert done >= {"early", "a", "b", "c"}, f"done are only {done}"
    people_look(queue)


def people_look(queue: Queue) -> None:
    queue.stats()
    for state in MessageState:
        list(queue.peek(state))
    queue.find("a")
    queue.operator.sweep()
    queue.purge(0)


def may_be_removed(folder: str, name: str) -> bool:
    """Return whether a sweep may remove it: it has the name of completed work or a free id."""
    swept = folder.startswith("completed") or folder in ("pending", "ids")
    return swept and name in WELL_FORMED[folder]


def check_litter(ground: Ground, inode: int) -> None:
    """Check that litter is unchanged, or is a dead letter with a reason."""
    places = [p for p in ground.folder.rglob("*") if p.lstat().st_ino == inode]
    assert len(places) == 1, "it is gone"
    assert audit.find_reasonless(ground.folder) in ([], [places[0].name])


@pytest.mark.parametrize("kind", KINDS)
def test_litter_in_the_place_of_the_clock_file_is_not_followed_and_does_not_hang(
    fast_path: Path, kind: str
) -> None:
    """The queue writes this file to read the file server's time."""
    outside = outside_of(fast_path)
    Ground(fast_path / "root").queue()
    path = Ground(fast_path / "root").folder / "workers" / ".clock"
    path.unlink(missing_ok=True)
    KINDS[kind](path, outside)
    outside_before = snapshot(outside)

    def play(say: Callable[[str], None]) -> None:
        queue: Queue = FilesystemQueue(fast_path / "root")
        queue.push(make_message("a"))
        assert drain(queue) == [("a", 1)]
        queue.operator.sweep()

    run_in_child(play, HANGS_AFTER_SECONDS)
    assert snapshot(outside) == outside_before


@pytest.mark.parametrize("kind", KINDS)
def test_litter_in_the_place_of_a_tasks_history_is_not_followed_and_does_not_hang(
    fast_path: Path, kind: str
) -> None:
    outside, ground = outside_of(fast_path), Ground(fast_path / "root")
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    KINDS[kind](ground.folder / "history" / f"{get_key(message)}.jsonl", outside)
    outside_before = snapshot(outside)

    def play(say: Callable[[str], None]) -> None:
        queue.nack(message, delay_seconds=0)
        [again] = queue.poll()
        queue.dead_letter(again, "no use")
        queue.redrive()
        assert drain(queue) == [("a", 1)]

    run_in_child(play, HANGS_AFTER_SECONDS)
    assert snapshot(outside) == outside_before


def test_an_hour_that_is_a_link_leads_no_task_out_of_the_queue(fast_path: Path) -> None:
    outside, ground = outside_of(fast_path), Ground(fast_path / "root")
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    hour = datetime.fromtimestamp(ground.clock.time(), UTC).strftime("%Y-%m-%dT%H")
    (ground.folder / "completed" / hour).symlink_to(outside / "folder")
    outside_before = snapshot(outside)
    with pytest.raises(QueueUnavailable):
        queue.ack(message)
    assert snapshot(outside) == outside_before


def test_an_hour_that_becomes_a_link_leads_no_later_task_out_of_the_queue(
    fast_path: Path,
) -> None:
    """The worker has used the hour's folder before, so it does not make it again."""
    outside, ground = outside_of(fast_path), Ground(fast_path / "root")
    queue = ground.queue()
    queue.push_many([make_message("a"), make_message("b")])
    first, second = queue.poll(2)
    queue.ack(first)
    [hour] = (ground.folder / "completed").iterdir()
    moved_and_linked(hour, outside)
    outside_before = snapshot(outside)
    ground.clock.advance(1.0)  # a folder is checked once a second
    with pytest.raises(QueueUnavailable, match="symbolic link"):
        queue.ack(second)
    assert snapshot(outside) == outside_before


def moved_and_linked(folder: Path, outside: Path) -> None:
    """Move a folder and link it, as an operator does to use a larger disk."""
    target = outside / f"moved-{folder.name}"
    shutil.move(folder, target)
    folder.symlink_to(target)


@pytest.mark.parametrize("create", [True, False], ids=["made", "looked at"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_queue_with_a_link_for_a_folder_is_refused_in_one_line(
    fast_path: Path, name: str, create: bool
) -> None:
    outside, ground = outside_of(fast_path), Ground(fast_path / "root")
    ground.queue().push(make_message("a"))
    moved_and_linked(ground.folder / name, outside)
    outside_before = snapshot(outside)
    with pytest.raises(QueueUnavailable, match=f"'{name}' in it is a symbolic link") as refused:
        ground.queue(create=create)
    assert "\n" not in str(refused.value)
    assert snapshot(outside) == outside_before


VERBS: dict[str, tuple[str, ...]] = {
    "push": ("tmp", "pending"),
    "push_many": ("tmp", "pending"),
    "push_once": ("ids",),
    "poll": ("leased",),
    "ack": ("completed",),
    "nack": ("pending",),
    "release": ("pending",),
    "dead_letter": ("failed",),
    "save_checkpoint": ("checkpoints",),
    "redrive": ("pending",),
}


@pytest.mark.parametrize(("verb", "name"), [(v, name) for v in VERBS for name in VERBS[v]])
def test_no_verb_of_a_running_worker_moves_a_task_through_a_link(
    fast_path: Path, verb: str, name: str
) -> None:
    """The folder became a link after the queue was opened."""
    outside, ground = outside_of(fast_path), Ground(fast_path / "root")
    queue = ground.queue()
    queue.push_many(
        [
            make_message("held"),
            make_message("dead"),
            make_message("done"),
            make_message("waiting"),
        ]
    )
    held, dead, done = queue.poll(3)
    queue.dead_letter(dead, "no use")
    queue.ack(done)
    moved_and_linked(ground.folder / name, outside)
    outside_before = snapshot(outside)
    ground.clock.advance(3)
    acts: dict[str, Callable[[], object]] = {
        "push": lambda: queue.push(make_message("a")),
        "push_many": lambda: queue.push_many([make_message("a"), make_message("b")]),
        "push_once": lambda: ground.queue(dedupe=True).push(make_message("a")),
        "poll": queue.poll,
        "ack": lambda: queue.ack(held),
        "nack": lambda: queue.nack(held),
        "release": lambda: queue.release(held),
        "dead_letter": lambda: queue.dead_letter(held, "no use"),
        "save_checkpoint": lambda: queue.save_checkpoint(held, {"page": 1}),
        "redrive": queue.redrive,
    }
    with pytest.raises(QueueUnavailable, match=f"'{name}' in it is a symbolic link"):
        acts[verb]()
    assert snapshot(outside) == outside_before


def test_a_folder_of_checkpoints_that_is_a_link_is_not_written_to(fast_path: Path) -> None:
    outside, ground = outside_of(fast_path), Ground(fast_path / "root")
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    (ground.folder / "checkpoints" / get_key(message)).symlink_to(outside / "folder")
    outside_before = snapshot(outside)
    with pytest.raises(QueueUnavailable, match="symbolic link"):
        queue.save_checkpoint(message, {"page": 1})
    queue.nack(message, delay_seconds=0)
    assert drain(queue) == [("a", 2)]
    assert snapshot(outside) == outside_before


def test_history_behind_a_link_is_not_written_and_costs_no_task(fast_path: Path) -> None:
    outside, ground = outside_of(fast_path), Ground(fast_path / "root")
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    moved_and_linked(ground.folder / "history", outside)
    outside_before = snapshot(outside)
    queue.nack(message, delay_seconds=0)
    assert drain(queue) == [("a", 2)]
    assert snapshot(outside) == outside_before


# -- names that no queue wrote


def planted(ground: Ground, name: str, folder: str = "pending/1700000000001-ab12-0") -> Path:
    path = ground.folder / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"id": "planted"}')
    return path


@pytest.mark.parametrize(
    "claims",
    ["999999999", "999999998", "100000000", "999999999-999999999"],
)
@pytest.mark.parametrize("leased", [False, True], ids=["pending", "leased"])
def test_a_task_with_an_impossible_fence_is_dead_lettered_with_a_reason(
    ground: Ground, claims: str, leased: bool
) -> None:
    queue = ground.queue()
    queue.push(make_message("good"))
    if leased:
        planted(ground, f"{KEY}~{claims}~abcdef~1700000000000+1000.json", "leased")
    else:
        planted(ground, f"{KEY}~{claims}~1700000000001.json")

    def play(say: Callable[[str], None]) -> None:
        assert drain(queue) == [("good", 1)]
        ground.clock.advance(MUCH_LATER)  # a lease of a worker without a card is watched
        assert drain(queue) == []
        [letter] = queue.dead_letters()
        assert letter.id == "planted"
        assert "which no queue wrote" in str(letter.reason)
        assert queue.find(KEY)[0].checkpoint is None
        assert queue.redrive() == 1  # it has no effect
        assert drain(queue) == []
        assert queue.drop(KEY) == 1
        assert queue.stats().foreign == 0

    run_in_child(play, HANGS_AFTER_SECONDS)


@pytest.mark.parametrize("claims", ["1-2", "0-999999999"])
def test_a_task_with_more_refunds_than_claims_is_dead_lettered_and_can_be_redriven(
    ground: Ground, claims: str
) -> None:
    queue = ground.queue()
    planted(ground, f"{KEY}~{claims}~1700000000001.json")
    assert drain(queue) == []
    [letter] = queue.dead_letters()
    assert "which no queue wrote" in str(letter.reason)
    assert queue.redrive() == 1
    assert drain(queue) == [("planted", 1)]


def test_the_largest_possible_fence_is_worked_on(ground: Ground) -> None:
    queue = ground.queue()
    planted(ground, f"{KEY}~99999998-99999998~1700000000001.json")

    def play(say: Callable[[str], None]) -> None:
        [message] = queue.poll()
        assert message.attempts == 1
        assert queue.load_checkpoint(message) is None
        queue.save_checkpoint(message, {"page": 1})
        queue.ack(message)

    run_in_child(play, HANGS_AFTER_SECONDS)


def test_work_on_checkpoints_does_not_grow_with_the_claims_or_with_other_tasks(
    ground: Ground,
) -> None:
    fs = CountingFs(ground.clock.time)
    queue = ground.queue(fs)

    def calls_to_load_and_ack() -> int:
        [message] = queue.poll()
        fs.counted.clear()
        assert queue.load_checkpoint(message) == {"page": 1}
        queue.ack(message)
        return fs.counted.total()

    def saved_once(message_id: str) -> None:
        queue.push(make_message(message_id))
        [message] = queue.poll()
        queue.save_checkpoint(message, {"page": 1})
        queue.release(message)

    saved_once("young")
    few = calls_to_load_and_ack()
    saved_once("old")
    for _ in range(300):
        queue.release(queue.poll()[0])
    others = [f"{number:018x}" for number in range(300)]
    for key in others:
        (ground.folder / "checkpoints" / key).mkdir()
    assert calls_to_load_and_ack() <= few


def test_purging_removes_the_checkpoints_that_a_killed_ack_left(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    queue.save_checkpoint(message, {"page": 1})
    left = ground.folder / "checkpoints" / get_key(message)
    shutil.copytree(left, ground.root / "left")
    queue.ack(message)
    assert not left.exists()
    shutil.copytree(ground.root / "left", left)
    assert queue.purge(0) == 1
    assert list((ground.folder / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("pending/1700000000001-ab12-0", f"{KEY}~٣~1700000000001.json"),
        ("pending/1700000000001-ab12-0", f"{KEY}~0~١٧٠٠٠٠٠٠٠٠٠٠١.json"),
        ("pending", "١٧٠٠٠٠٠٠٠٠٠٠١-ab12-0"),
        ("leased", f"{KEY}~1~abcdef~١٧٠٠٠٠٠٠٠٠٠٠٠+1000.json"),
        ("completed", "２０２０-01-01T00"),
        ("completed/2020-01-01T00", f"{KEY}~1~abcdef~१.json"),
        ("failed", f"{KEY}~３.json"),
        ("failed", f"{KEY}~1-３.json"),
    ],
)
def test_digits_of_other_scripts_are_left_alone_and_reported(
    ground: Ground, folder: str, name: str
) -> None:
    queue = ground.queue()
    path = planted(ground, name, folder)
    before = path.lstat().st_ino, path.read_bytes()
    queue.push(make_message("good"))
    assert drain(queue) == [("good", 1)]
    people_look(queue)
    assert (path.lstat().st_ino, path.read_bytes()) == before
    assert queue.stats().foreign == 1
    findings = [
        finding
        for finding in examine_file_queue(FileQueue(ground.folder))
        if name in finding.found
    ]
    assert [finding.check for finding in findings] == ["foreign files"]


@pytest.mark.parametrize("folder", ["pending", "leased", "completed", "failed"])
def test_foreign_files_are_reported(ground: Ground, folder: str) -> None:
    queue = ground.queue()
    before = queue.stats().foreign
    (ground.folder / folder / "notes.txt").write_text("remember the milk")
    assert queue.stats().foreign == before + 1


def test_an_unreadable_task_is_dead_lettered_and_the_rest_is_delivered(ground: Ground) -> None:
    queue = ground.queue()
    segment = ground.folder / "pending" / "1700000000001-ab12-0"
    segment.mkdir()
    outside = outside_of(ground.root)
    for number, drop in enumerate(KINDS.values()):
        drop(segment / f"{number:018x}~0~1700000000001.json", outside)
    queue.push(make_message("good"))
    assert [message.id for message in queue.poll(100)] == ["good"]
    reasons = [view.reason for view in queue.dead_letters()]
    assert len(reasons) == len(KINDS)
    assert all(reason and reason.startswith("malformed: ") for reason in reasons)
    assert not any("milk" in str(reason) for reason in reasons)  # bodies stay out of reasons
