"""A damaged, locked, read-only, full or network-mounted database: one line with the remedy.

The faults are real: bytes on the disk, other processes, modes, and small mounted disks.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import AnyMessage, SQLiteQueue
from holdfast.errors import ConfigError, HoldfastError, QueueUnavailable
from holdfast.queue.manager import MessageState
from holdfast.store.sqlite import path_check
from support.cli.commands import (
    Ran,
    clean_env,
    command,
    real,
    require_one_line,
    run_unprivileged,
)
from support.disks import mounted
from support.waiting import WAIT_TIMEOUT_SECONDS

PAGE_BYTES = 4096


def fill_queue(path: Path, count: int = 300) -> SQLiteQueue[AnyMessage]:
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(path)
    queue.push_many(AnyMessage(id=f"m{n}", text="x" * 500) for n in range(count))
    return queue


# -- damaged


def test_a_database_damaged_in_the_middle_says_so(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    fill_queue(path).close()
    damage(path)
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(path)
    with pytest.raises(QueueUnavailable, match=r"queue '.*work\.db' is unavailable: .*damaged"):
        list(queue.peek(MessageState.PENDING, 1000))
    ran = real(tmp_path, "list", "sqlite:work.db", "--limit=0")
    assert ran.code == 3
    assert "the file is damaged: restore it from a backup" in require_one_line(ran)


def damage(path: Path) -> None:
    """Overwrite the pages in the middle of the file, but not the tables' own pages."""
    pages = path.stat().st_size // PAGE_BYTES
    assert pages > 40
    with path.open("r+b") as file:
        for page in range(pages // 3, 2 * pages // 3):
            file.seek(page * PAGE_BYTES)
            file.write(b"\xa5" * PAGE_BYTES)


@pytest.mark.parametrize("kept", [0, 100], ids=["header", "first page"])
def test_a_file_that_is_not_a_database_is_refused_and_left_alone(
    tmp_path: Path, kept: int
) -> None:
    path = tmp_path / "work.db"
    fill_queue(path).close()
    damaged = path.read_bytes()[:kept] + b"not a database " * 1000
    path.write_bytes(damaged)
    with pytest.raises(HoldfastError, match=r"queue '.*work\.db'"):
        SQLiteQueue(path)
    ran = real(tmp_path, "push", "sqlite:work.db", "{}")
    assert ran.code == (3 if kept else 2)
    assert "queue" in require_one_line(ran)
    assert path.read_bytes() == damaged


# -- locked

HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let another process hold the write lock."""
    arguments = [sys.executable, "-c", HOLD_LOCK, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == b"locked\n"
            yield
        finally:
            other.stdin.close()


def test_a_database_locked_for_too_long_is_unavailable_and_works_again_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "work.db"
    fill_queue(path, 3).close()
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(path, busy_seconds=0.2)
    [held] = queue.poll()
    with locked(path):
        for write in (lambda: queue.push(AnyMessage()), queue.poll, lambda: queue.ack(held)):
            with pytest.raises(QueueUnavailable, match=r"queue .* locked for too long"):
                write()
    queue.ack(held)
    assert len(queue.poll(10)) == 2


@pytest.mark.nightly
def test_the_command_line_waits_ten_seconds_for_a_locked_database(tmp_path: Path) -> None:
    fill_queue(tmp_path / "work.db", 3).close()
    with locked(tmp_path / "work.db"):
        ran = real(tmp_path, "push", "sqlite:work.db", "{}")
        assert ran.code == 3
        assert "other processes kept it locked for too long" in require_one_line(ran)
        assert real(tmp_path, "status", "sqlite:work.db", "--json").json["ready"] == 3


def test_inspecting_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    fill_queue(path, 3).close()
    with locked(path):
        queue: SQLiteQueue[AnyMessage] = SQLiteQueue(path, create=False, busy_seconds=0.2)
        assert queue.stats().ready == 3
        assert len(list(queue.peek(MessageState.PENDING))) == 3
        assert len(queue.find("m1")) == 1


# -- permissions


def test_a_read_only_database_is_reported_with_what_to_check(tmp_path: Path) -> None:
    fill_queue(tmp_path / "work.db", 3).close()
    (tmp_path / "work.db").chmod(0o444)
    ran = run_unprivileged(tmp_path, "push", "sqlite:work.db", "{}")
    assert ran.code == 2
    line = require_one_line(ran)
    assert "the queue" in line
    assert "cannot be written: check the permissions of file and folder" in line
    assert run_unprivileged(tmp_path, "status", "sqlite:work.db", "--json").json["ready"] == 3


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    fill_queue(folder / "work.db", 3).close()
    folder.chmod(mode)
    try:
        ran = run_unprivileged(tmp_path, "push", "sqlite:folder/work.db", "{}")
    finally:
        folder.chmod(0o755)
    assert ran.code == 2
    assert "permission" in require_one_line(ran).lower()
    assert SQLiteQueue(folder / "work.db").stats().ready == 3  # type: ignore[var-annotated]


# -- full


def test_a_full_disk_loses_nothing_that_was_pushed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with (
        mounted(disk, "-t", "tmpfs", "-o", "size=400k", "tmpfs"),
        SQLiteQueue(disk / "work.db") as queue,
    ):
        pushed: list[str] = []
        with pytest.raises(QueueUnavailable, match=r"queue .*full"):
            push_until_full(queue, pushed)
        ran = real(disk, "push", "sqlite:work.db", f'{{"text": "{"x" * 9000}"}}')
        assert ran.code == 3
        assert "full" in require_one_line(ran)
        assert queue.stats().ready == len(pushed)
        assert {m.id for m in queue.peek(MessageState.PENDING, 1000)} == set(pushed)


def test_acks_and_purges_work_again_on_a_full_disk_once_the_log_starts_anew(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    with (
        mounted(disk, "-t", "tmpfs", "-o", "size=4m", "tmpfs"),
        SQLiteQueue(disk / "work.db") as queue,
    ):
        queue.push_many(AnyMessage(text="x" * 1000) for _ in range(200))
        queue.ack_many(queue.poll(200))
        queue.purge(0)  # the file has free pages from now on
        with queue._database.begin_read() as connection:
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        queue.push_many(AnyMessage() for _ in range(20))
        held = queue.poll(20)
        with suppress(OSError), (disk / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(b"x" * 512)
        with pytest.raises(QueueUnavailable, match="full"):
            ack_one_by_one(queue, held)
        checkpoint = queue._database._checkpoint
        assert checkpoint is not None
        checkpoint.join()
        queue.ack_many(held)
        assert (queue.purge(0), queue.stats().completed) == (20, 0)


def ack_one_by_one(queue: SQLiteQueue[AnyMessage], held: list[AnyMessage]) -> None:
    while held:
        queue.ack(held[-1])
        held.pop()


def push_until_full(queue: SQLiteQueue[AnyMessage], pushed: list[str]) -> None:
    while len(pushed) < 1000:
        pushed.append(queue.push(AnyMessage(text="x" * 2000)))


def test_a_queue_is_not_half_created_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
        fill = disk / "fill"
        fill.write_bytes(b"x" * 60 * 1024)
        ran = real(disk, "push", "sqlite:work.db", "{}")
        assert ran.code == 3
        assert "full" in require_one_line(ran)
        fill.unlink()
        subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
        assert real(disk, "push", "sqlite:work.db", "{}").code == 0
        assert real(disk, "status", "sqlite:work.db", "--json").json["ready"] == 1


def test_a_disk_without_room_for_another_file_is_unavailable(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=2m,nr_inodes=2", "tmpfs"):
        (disk / "last").touch()
        ran = real(disk, "push", "sqlite:work.db", "{}")
    assert ran.code == 3
    assert "cannot store messages: No space left on device" in require_one_line(ran)


# -- network filesystems


def test_a_network_filesystem_is_refused_for_a_queue(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    options: dict[str, Any] = {"content": "messages", "alternative": "SQS"}
    with pytest.raises(ConfigError, match=r"is on nfs4.* local disk, or SQS for several"):
        path_check.prepare_file(tmp_path / "work.db", mounts, **options)


def test_the_command_line_refuses_a_network_filesystem(tmp_path: Path) -> None:
    """The process sees another mount table, in a mount namespace of its own."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    script = f'mount --bind "{mounts}" /proc/$$/mounts || exit 99; exec "$@"'
    words = command("push", "sqlite:work.db/enrich", "{}")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *words],
        cwd=tmp_path,
        env=clean_env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_TIMEOUT_SECONDS,
    )
    if done.returncode in (1, 99):
        pytest.skip("mounting is not allowed here")
    ran = Ran(done.returncode, done.stdout, done.stderr)
    assert ran.code == 2
    assert "is on nfs4" in require_one_line(ran)
    assert "or SQS for several machines" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["mounts"]
