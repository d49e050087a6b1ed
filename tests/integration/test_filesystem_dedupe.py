"""Dedupe among dead letters, and beside pushes that do not ask for it."""

from pathlib import Path

import pytest

from fs import audit
from fs.ground import Ground, drain, note
from holdfast.adapters.local.filesystem import FilesystemQueue, FsOps
from holdfast.core.message import QueueMessage


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path, dedupe=True)


def states(ground: Ground) -> list[str]:
    return sorted(state for state, _, _ in audit.tasks(ground.folder))


def test_a_dead_letter_is_not_redriven_beside_a_later_push_of_its_id(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    queue.dead_letter(queue.poll()[0], "no use")
    queue.push(note("a"))
    assert queue.redrive() == 0
    assert states(ground) == ["failed", "pending"]


def test_a_redriven_id_is_taken(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    queue.dead_letter(queue.poll()[0], "no use")
    assert queue.redrive() == 1
    queue.push(note("a"))
    assert drain(queue) == [("a", 1)]


def test_a_dead_letter_frees_only_the_id_it_took_itself(ground: Ground) -> None:
    """The same id was pushed by somebody who does not dedupe."""
    queue, careless = ground.queue(), ground.queue(dedupe=False)
    queue.push(note("a", by="dedupe"))
    careless.push(note("a", by="careless"))
    first, second = sorted(queue.poll(2), key=lambda message: message.by)
    careless.dead_letter(first, "no use")
    assert second.by == "dedupe"
    queue.push(note("a", by="again"))
    assert states(ground) == ["failed", "leased"]


class Newest(QueueMessage):
    schema_version: int = 2


def test_an_unreadable_dead_letter_frees_its_id_too(ground: Ground) -> None:
    """Its id is not known when it is buried; it is not blocked for that."""
    ground.queue().push(note("a"))
    strict: FilesystemQueue[Newest] = FilesystemQueue(
        ground.root, Newest, clock=ground.clock, fs=FsOps(server_time=ground.clock.time)
    )
    assert strict.poll() == []
    assert states(ground) == ["failed"]
    ground.queue().push(note("a"))
    assert states(ground) == ["failed", "pending"]


def test_an_unreadable_dead_letter_that_came_back_leaves_no_id_behind(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    strict: FilesystemQueue[Newest] = FilesystemQueue(
        ground.root, Newest, clock=ground.clock, fs=FsOps(server_time=ground.clock.time)
    )
    assert strict.poll() == []
    assert queue.redrive() == 1
    assert drain(queue) == [("a", 1)]
    ground.clock.advance(10)
    assert queue.purge(1) == 1
    queue.push(note("a"))
    assert states(ground) == ["pending"]
