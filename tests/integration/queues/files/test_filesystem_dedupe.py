"""Dedupe among dead letters, and beside pushes without dedupe."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import QueueUnavailable
from holdfast.queue.message import QueueMessage
from holdfast.queues.files import FilesystemQueue, FsOps
from holdfast.queues.files.layout import hash_id
from support.files import audit
from support.files.foreign_files import KINDS, outside_of, snapshot
from support.files.queue_folder import LEASE, Ground, Queue, drain, get_key, make_message
from support.files.watched import WatchedFs


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path, dedupe=True)


def states(ground: Ground) -> list[str]:
    return sorted(state for state, _, _ in audit.list_tasks(ground.folder))


def test_a_dead_letter_is_not_redriven_beside_a_later_push_of_its_id(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    queue.dead_letter(queue.poll()[0], "no use")
    queue.push(make_message("a"))
    assert queue.redrive() == 0
    assert states(ground) == ["failed", "pending"]


def test_a_redriven_id_is_taken(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    queue.dead_letter(queue.poll()[0], "no use")
    assert queue.redrive() == 1
    queue.push(make_message("a"))
    assert drain(queue) == [("a", 1)]


def test_a_dead_letter_frees_only_the_id_it_took_itself(ground: Ground) -> None:
    """The same id was pushed by a producer without dedupe."""
    queue, careless = ground.queue(), ground.queue(dedupe=False)
    queue.push(make_message("a", by="dedupe"))
    careless.push(make_message("a", by="careless"))
    first, second = sorted(queue.poll(2), key=lambda message: message.by)
    careless.dead_letter(first, "no use")
    assert second.by == "dedupe"
    queue.push(make_message("a", by="again"))
    assert states(ground) == ["failed", "leased"]


class Newest(QueueMessage):
    schema_version: int = 2


def test_an_unreadable_dead_letter_frees_its_id_too(ground: Ground) -> None:
    """Its id is unknown when it is dead-lettered, and must not stay taken."""
    ground.queue().push(make_message("a"))
    strict: FilesystemQueue[Newest] = FilesystemQueue(
        ground.root, Newest, clock=ground.clock, fs=FsOps(server_time=ground.clock.time)
    )
    assert strict.poll() == []
    assert states(ground) == ["failed"]
    ground.queue().push(make_message("a"))
    assert states(ground) == ["failed", "pending"]


def test_an_unreadable_dead_letter_that_came_back_leaves_no_id_behind(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    strict: FilesystemQueue[Newest] = FilesystemQueue(
        ground.root, Newest, clock=ground.clock, fs=FsOps(server_time=ground.clock.time)
    )
    assert strict.poll() == []
    assert queue.redrive() == 1
    assert drain(queue) == [("a", 1)]
    ground.clock.advance(10)
    assert queue.purge(1) == 1
    queue.push(make_message("a"))
    assert states(ground) == ["pending"]


# -- tasks that are removed by hand


def remove_all(queue: Queue) -> None:
    for _, _, path in list(audit.list_tasks(queue.folder)):
        path.unlink()


def test_what_was_removed_by_hand_is_swept_whatever_it_was(ground: Ground) -> None:
    queue = ground.queue()
    queue.push_many(map(make_message, "abc"))
    held = {message.id: message for message in queue.poll(2)}
    queue.ack(held["a"])
    remove_all(queue)
    assert queue.operator.sweep() == 3
    assert audit.find_residue(ground.folder) == []
    queue.push_many(map(make_message, "abc"))
    assert queue.stats().ready == 3


def test_a_dead_letter_that_is_moved_back_by_hand_is_alive(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    queue.dead_letter(queue.poll()[0], "no use")
    [(_, task, path)] = audit.list_tasks(ground.folder)
    [segment] = (ground.folder / "pending").iterdir()
    path.rename(segment / f"{task.stem}~0.json")
    assert drain(queue) == [("a", 2)]


# -- other files in the place of a record or a mark

TEXTS = {
    "no key": "hello",
    "key of another id": f"0123456789{hash_id('b')[:8]}",
    "path": "../../../../etc/passwd",
    "long": "x" * 4000,
    "undecodable": "\udcff",
}


def _text(text: str) -> Callable[[Path, Path], None]:
    return lambda path, outside: path.symlink_to(text)


FOUND = KINDS | {name: _text(text) for name, text in TEXTS.items()}
everything_found = pytest.mark.parametrize("kind", FOUND)
IN_THE_WAY = ("folder", "full folder")


def replaced(ground: Ground, name: str, kind: str, outside: Path) -> None:
    path = ground.folder / "ids" / name
    path.unlink(missing_ok=True)
    FOUND[kind](path, outside)


@everything_found
def test_litter_in_the_place_of_a_record_does_not_take_its_id(
    fast_path: Path, kind: str
) -> None:
    ground, outside = Ground(fast_path / "root", dedupe=True), outside_of(fast_path)
    queue, outside_before = ground.queue(), snapshot(outside)
    replaced(ground, hash_id("a"), kind, outside)
    if kind in IN_THE_WAY:
        with pytest.raises(QueueUnavailable, match="move it out"):
            queue.push(make_message("a"))
        (ground.folder / "ids" / hash_id("a")).rename(fast_path / "moved")
        assert audit.find_residue(ground.folder) == []
    queue.push(make_message("a", which=1))
    queue.push(make_message("a", which=2))
    assert [message.which for message in queue.poll(10)] == [1]
    assert snapshot(outside) == outside_before


@everything_found
@pytest.mark.parametrize("mark", ["dead", "redrive"])
def test_litter_in_the_place_of_a_mark_neither_frees_nor_blocks_an_id(
    fast_path: Path, kind: str, mark: str
) -> None:
    ground, outside = Ground(fast_path / "root", dedupe=True), outside_of(fast_path)
    queue, outside_before = ground.queue(), snapshot(outside)
    queue.push(make_message("a"))
    [message] = queue.poll()
    replaced(ground, f"{mark}-{get_key(message)}", kind, outside)
    queue.push(make_message("a"))
    assert states(ground) == ["leased"]
    queue.dead_letter(message, "no use")
    ground.clock.advance(2 * LEASE)
    queue.operator.sweep(0)
    queue.push(make_message("a"))
    assert states(ground) == ["failed", "pending"]
    assert snapshot(outside) == outside_before


def test_a_push_under_which_tmp_is_emptied_leaves_its_id_free(ground: Ground) -> None:
    """Otherwise the push that the error asks for would be refused."""

    class EmptyingFs(WatchedFs):
        def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            if name == "symlink":
                for path in (ground.folder / "tmp").iterdir():
                    path.unlink()
            return result

    queue = ground.queue()
    queue.push(make_message("b"))
    queue._directory.fs = EmptyingFs(ground.clock.time)
    with pytest.raises(QueueUnavailable, match="push again"):
        queue.push(make_message("a"))
    queue._directory.fs = FsOps(ground.clock.time)
    queue.push(make_message("a"))
    assert sorted(message.id for message in queue.poll(10)) == ["a", "b"]
