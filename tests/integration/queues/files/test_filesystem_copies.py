"""Dedupe beside backups and on other filesystems: it does not depend on link counts.

Backups (`cp -al`, rsnapshot) give every file a second name, a restored copy gives each name
a file of its own, and an overlay filesystem shows the counts of another layer.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.files import audit
from support.files.crash import run_in_child
from support.files.queue_folder import Ground, Queue, drain, make_message

CLONE_NEWNS = 0x20000


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path / "root", dedupe=True)


def back_up(source: Path, target: Path) -> None:
    """Copy like `cp -al`: make folders, and give everything else a second name."""
    shutil.copytree(source, target, symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)


def complete(queue: Queue) -> None:
    assert drain(queue) == [("a", 1)]


def dead_letter(queue: Queue) -> None:
    queue.dead_letter(queue.poll()[0], "no use")


def purge(queue: Queue) -> None:
    assert queue.purge(0) == 1


def drop(queue: Queue) -> None:
    assert queue.drop("a") == 1


def remove_by_hand(queue: Queue) -> None:
    for _, _, path in list(audit.list_tasks(queue.folder)):
        path.unlink()
    queue.purge(0)


ENDS = {
    "purged": (complete, purge),
    "dead": (dead_letter, lambda queue: None),
    "dropped": (dead_letter, drop),
    "pending, then removed by hand": (lambda queue: None, remove_by_hand),
    "completed, then removed by hand": (complete, remove_by_hand),
}
every_end = pytest.mark.parametrize(("ends", "goes"), ENDS.values(), ids=ENDS)
Step = Callable[[Queue], None]


def must_be_accepted(queue: Queue) -> None:
    """Check that one push of the id is accepted, and a second one is refused."""
    queue.push(make_message("a", which="later"))
    queue.push(make_message("a", which="refused"))
    assert [message.which for message in queue.poll(10)] == ["later"]


@every_end
def test_an_id_that_is_gone_can_be_pushed_again_after_a_backup_by_hard_links(
    fast_path: Path, ground: Ground, ends: Step, goes: Step
) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    ends(queue)
    back_up(ground.root, fast_path / "backup")
    goes(queue)
    must_be_accepted(ground.queue())


@every_end
def test_an_id_that_goes_in_a_restored_backup_can_be_pushed_again(
    fast_path: Path, ground: Ground, ends: Step, goes: Step
) -> None:
    ground.queue().push(make_message("a"))
    back_up(ground.root, fast_path / "restored")
    queue = Ground(fast_path / "restored", ground.clock, dedupe=True).queue()
    ends(queue)
    goes(queue)
    must_be_accepted(queue)


def test_a_copy_without_hard_links_knows_what_is_alive_and_what_is_dead(
    fast_path: Path, ground: Ground
) -> None:
    queue = ground.queue()
    queue.push_many(
        [
            make_message("dead"),
            make_message("dropped"),
            make_message("completed"),
            make_message("held"),
        ]
    )
    for message in sorted(queue.poll(10), key=lambda m: str(m.id)):
        if message.id in ("dead", "dropped"):
            queue.dead_letter(message, "no use")
        elif message.id == "completed":
            queue.ack(message)
    queue.drop("dropped")
    queue.push(make_message("pending"))
    shutil.copytree(ground.root, fast_path / "copy", symlinks=True)
    copy = Ground(fast_path / "copy", ground.clock, dedupe=True).queue()
    before = copy.stats()
    copy.push_many([make_message("pending"), make_message("held"), make_message("completed")])
    assert copy.stats() == before
    copy.push_many([make_message("dead"), make_message("dropped")])
    assert copy.stats().ready == before.ready + 2


@every_end
def test_an_id_that_is_gone_can_be_pushed_again_on_an_overlay_filesystem(
    fast_path: Path, ground: Ground, ends: Step, goes: Step
) -> None:
    """The queue begins in the lower layer, as in an image of a container."""
    queue = ground.queue()
    queue.push(make_message("a"))
    ends(queue)

    def play(say: Callable[[str], None]) -> None:
        if why := mount_overlay(ground.root, fast_path):
            say(f"skip: {why}")
            return
        merged = Ground(fast_path / "merged", ground.clock, dedupe=True).queue()
        goes(merged)
        must_be_accepted(merged)

    output = run_in_child(play).output
    if output.startswith("skip: "):
        pytest.skip(output.removeprefix("skip: "))


def mount_overlay(lower: Path, where: Path) -> str:
    """Mount in this process's own mount namespace; return why that fails, or nothing."""
    for name in ("upper", "work", "merged"):
        (where / name).mkdir()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        return f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}"
    layers = f"lowerdir={lower},upperdir={where / 'upper'},workdir={where / 'work'}"
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "overlay", "overlay", "-o", layers, str(where / "merged")],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            return f"an overlay cannot be mounted here: {ran.stderr.strip()}"
    return ""
