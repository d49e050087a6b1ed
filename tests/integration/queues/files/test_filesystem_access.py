"""Access to a queue: by its owner only, or by a group; and files that other users closed."""

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError, QueueUnavailable
from holdfast.exports.downloads.s3_target import S3Target
from holdfast.exports.sqlite_jobs import SQLiteJobs
from holdfast.queues.files import FilesystemQueue
from support.files.crash import run_in_child
from support.files.queue_folder import LEASE, Ground, drain, make_message
from support.files.watched import RefusingFs
from support.users import ALICE, BOB, as_root, as_user, shared_root

umasks = pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)


def with_umask(umask: int, act: Callable[[], object]) -> None:
    """Run `act` in a process of its own, because the umask belongs to a process."""

    def play(say: Callable[[str], None]) -> None:
        os.umask(umask)
        act()

    run_in_child(play)


def all_modes(folder: Path) -> tuple[set[int], set[int]]:
    """Return the modes of all folders, and of all files."""
    # A symbolic link has no mode of its own.
    paths = [p for p in (folder, *folder.rglob("*")) if not p.is_symlink()]
    modes = [(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths]
    return {m for is_dir, m in modes if is_dir}, {m for is_dir, m in modes if not is_dir}


def live(ground: Ground, **options: Any) -> None:
    """Leave one file of each kind behind."""
    queue = ground.queue(dedupe=True, **options)
    queue.push(make_message("once"))
    plain = ground.queue()
    plain.push_many([make_message("b"), make_message("c")])
    for message in plain.poll(3):
        plain.save_checkpoint(message, {"page": 1})
        plain.nack(message, delay_seconds=0)
    done, dead, _held = plain.poll(3)
    plain.ack(done)
    plain.dead_letter(dead, "no use", detail="a traceback")
    FilesystemQueue(ground.root).close()  # the queue read the time from the filesystem


@umasks
def test_a_queue_is_its_owners_alone_whatever_the_umask(fast_path: Path, umask: int) -> None:
    ground = Ground(fast_path / "new" / "root")
    with_umask(umask, lambda: live(ground))
    assert all_modes(fast_path / "new") == ({0o700}, {0o600})


@umasks
def test_a_shared_queue_is_its_groups_whatever_the_umask(fast_path: Path, umask: int) -> None:
    ground = Ground(fast_path / "new" / "root")
    with_umask(umask, lambda: live(ground, access="group"))
    assert all_modes(fast_path / "new") == ({0o2770}, {0o660})


def test_folders_that_exist_are_left_alone(fast_path: Path) -> None:
    (fast_path / "queues").mkdir(mode=0o755)
    live(Ground(fast_path), access="group")
    assert stat.S_IMODE((fast_path / "queues").stat().st_mode) == 0o755
    assert all_modes(fast_path / "queues" / "default") == ({0o2770}, {0o660})


def test_who_may_use_a_queue_is_private_or_group(fast_path: Path) -> None:
    with pytest.raises(ConfigError, match="'private' or 'group', not 'world'"):
        FilesystemQueue(fast_path / "root", access="world")  # type: ignore[arg-type]
    assert list(fast_path.iterdir()) == []


def test_a_queue_that_was_killed_while_it_was_made_becomes_shared(fast_path: Path) -> None:
    ground = Ground(fast_path)
    ground.folder.mkdir(parents=True, mode=0o750)
    live(ground, access="group")
    assert all_modes(ground.folder) == ({0o2770}, {0o660})


def test_group_access_of_a_private_queue_is_refused_with_a_remedy(fast_path: Path) -> None:
    ground = Ground(fast_path / "it's here")
    live(ground)
    with pytest.raises(ConfigError, match="is private") as refused:
        ground.queue(access="group")
    assert "\n" not in str(refused.value)
    command = str(refused.value).partition("share it with ")[2]
    command = command.replace("GROUP", str(os.getgid()))
    subprocess.run(command, shell=True, check=True)
    ground.queue(access="group").push(make_message("d"))
    assert all_modes(ground.folder) == ({0o2770}, {0o660})


@as_root
def test_users_of_one_group_do_each_others_work(fast_path: Path) -> None:
    ground = Ground(shared_root(fast_path), max_attempts=10)
    as_user(ALICE, lambda: live(ground, access="group"))
    ground.clock.advance(2 * LEASE)

    def bob() -> None:
        queue = ground.queue(dedupe=True)
        [taken] = queue.poll(10)
        assert queue.load_checkpoint(taken) == {"page": 1}
        queue.save_checkpoint(taken, {"page": 2})
        queue.nack(taken, delay_seconds=0)
        assert queue.redrive() == 1
        assert len(drain(queue)) == 2
        queue.push_many([make_message("e"), make_message("f")])
        assert queue.purge(0) == 3

    as_user(BOB, bob)
    as_user(ALICE, lambda: drain(ground.queue()))
    assert ground.queue().stats().completed == 2
    assert all_modes(ground.folder) == ({0o2770}, {0o660})


@as_root
@pytest.mark.parametrize("create", [True, False])
def test_other_users_are_refused_in_one_line(fast_path: Path, create: bool) -> None:
    ground = Ground(shared_root(fast_path))
    as_user(ALICE, lambda: live(ground))

    def bob() -> None:
        with pytest.raises(QueueUnavailable, match="permission denied"):
            ground.queue(create=create)

    as_user(BOB, bob)


# -- other files that hold bodies, tokens and numbers


def make_jobs(folder: Path) -> None:
    SQLiteJobs(folder / "exports" / "jobs.db").close()


@umasks
def test_the_job_store_and_the_folders_above_it_are_private(
    fast_path: Path, umask: int
) -> None:
    with_umask(umask, lambda: make_jobs(fast_path / "data"))
    assert all_modes(fast_path / "data") == ({0o700}, {0o600})


@umasks
def test_half_done_files_for_s3_are_in_private_folders(fast_path: Path, umask: int) -> None:
    scratch = fast_path / "data" / "exports" / "parts"
    with_umask(umask, lambda: S3Target("s3://bucket/x", str(scratch), client=object()))
    assert all_modes(fast_path / "data") == ({0o700}, set())


# -- files and folders that another user closed


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755], ids=["unreadable", "unchangeable"])
def test_a_segment_that_another_user_closed_is_passed_over(fast_path: Path, mode: int) -> None:
    ground = Ground(shared_root(fast_path))
    as_user(ALICE, lambda: ground.queue(access="group").push_many([make_message("closed")]))
    [segment] = (ground.folder / "pending").iterdir()
    segment.chmod(mode)

    def bob() -> None:
        queue = ground.queue()
        queue.push(make_message("open"))
        assert drain(queue) == [("open", 1)]
        assert queue.poll() == []
        assert queue.stats().completed == 1
        assert queue.purge(0) == 1

    as_user(BOB, bob)
    segment.chmod(0o2770)
    assert drain(ground.queue()) == [("closed", 1)]


@as_root
def test_a_folder_of_leases_that_cannot_be_changed_is_an_error(fast_path: Path) -> None:
    """It is not skipped, because nothing could be claimed and the worker would look idle."""
    ground = Ground(shared_root(fast_path))
    as_user(ALICE, lambda: ground.queue(access="group").push(make_message("a")))
    (ground.folder / "leased").chmod(0o750)

    def bob() -> None:
        with pytest.raises(QueueUnavailable, match="permission denied"):
            ground.queue().poll()

    as_user(BOB, bob)


@as_root
def test_a_lease_whose_workers_card_cannot_be_read_is_taken_over(fast_path: Path) -> None:
    ground = Ground(shared_root(fast_path))

    def alice() -> None:
        ground.queue(access="group").push(make_message("a"))
        assert len(ground.queue().poll()) == 1

    as_user(ALICE, alice)
    for card in (ground.folder / "workers").glob("*.json"):
        card.chmod(0o600)
    ground.clock.advance(2 * LEASE)

    def bob() -> None:
        queue = ground.queue()
        assert queue.stats().leased == 1
        assert drain(queue) == []
        ground.clock.advance(2 * LEASE)  # without its card, the lease is watched
        assert drain(queue) == [("a", 2)]

    as_user(BOB, bob)


@as_root
def test_a_lease_that_a_sticky_folder_keeps_is_passed_over(fast_path: Path) -> None:
    ground = Ground(shared_root(fast_path))

    def alice() -> None:
        ground.queue(access="group").push(make_message("a"))
        assert len(ground.queue().poll()) == 1

    as_user(ALICE, alice)
    leased = ground.folder / "leased"
    leased.chmod(0o3770)
    ground.clock.advance(2 * LEASE)

    def bob() -> None:
        queue = ground.queue()
        queue.push(make_message("b"))
        assert drain(queue) == [("b", 1)]

    as_user(BOB, bob)
    leased.chmod(0o750)

    def bob_again() -> None:
        with pytest.raises(QueueUnavailable, match="permission denied"):
            ground.queue().poll()

    as_user(BOB, bob_again)


def test_a_card_that_cannot_be_read_is_no_reason_to_stop(fast_path: Path) -> None:
    """The same for any user, because the file system itself refuses."""
    ground = Ground(fast_path)
    ground.queue().push(make_message("a"))
    assert len(ground.queue().poll()) == 1
    fs = RefusingFs(
        ground.clock.time,
        errno.EACCES,
        concerns=lambda name, args: name == "open" and args[0].startswith("workers/"),
    )
    fs.refusing = True
    queue = ground.queue(fs)
    assert drain(queue) == []
    ground.clock.advance(2 * LEASE)
    assert drain(queue) == [("a", 2)]


@pytest.mark.parametrize("act", ["redrive", "drop"])
def test_dead_letters_that_cannot_be_listed_are_an_error(fast_path: Path, act: str) -> None:
    """Otherwise an operator would be told that there are none."""
    ground = Ground(fast_path)
    fs = close_folder(ground, "failed")
    queue = ground.queue(fs)
    queue.push(make_message("a"))
    queue.dead_letter(queue.poll()[0], "no use")
    fs.refusing = True
    with pytest.raises(QueueUnavailable, match="permission denied"):
        queue.redrive() if act == "redrive" else queue.drop("a")


def test_a_sweep_that_cannot_list_the_leases_keeps_the_cards_of_their_holders(
    fast_path: Path,
) -> None:
    ground = Ground(fast_path)
    holder = ground.queue()
    holder.push(make_message("a"))
    holder.extend(holder.poll()[0], 7 * 86_400.0)
    ground.clock.advance(3 * 86_400.0)
    fs = close_folder(ground, "leased")
    queue = ground.queue(fs)
    fs.refusing = True
    with pytest.raises(QueueUnavailable, match="permission denied"):
        queue.operator.sweep()
    assert len(list((ground.folder / "workers").glob("*.json"))) == 1


def close_folder(ground: Ground, folder: str) -> RefusingFs:
    """Return a file system that does not list the folder while it is `refusing`."""
    return RefusingFs(
        ground.clock.time,
        errno.EACCES,
        concerns=lambda name, args: name == "open" and args[0] == folder,
    )


@as_root
def test_operators_see_what_they_may_read(fast_path: Path) -> None:
    ground = Ground(shared_root(fast_path))
    as_user(ALICE, lambda: live(ground, access="group"))
    closed = [*ground.folder.glob("failed/*.json"), *ground.folder.glob("history/*")]
    closed += [*ground.folder.glob("checkpoints/*/*"), *ground.folder.glob("workers/*.json")]
    for path in closed:
        path.chmod(0o600)

    def bob() -> None:
        queue = ground.queue()
        [letter] = queue.dead_letters()
        assert letter.reason == "unknown: its reason file is missing or cannot be read"
        [view] = queue.find(letter.key)
        assert (view.past, view.checkpoint, view.body) == ((), None, None)
        assert queue.stats().failed == 1

    as_user(BOB, bob)
