"""doctor on a queue in a SQLite file: its results for faults made by hand, and no changes."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import AnyMessage, SQLiteQueue
from holdfast.doctor import sqlite_file
from holdfast.doctor.checks import CheckLevel, CheckResult
from holdfast.doctor.sqlite_file import examine_sqlite_queue
from holdfast.errors import StoreUnavailable
from holdfast.exports.building import open_jobs
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.mounts import MOUNTS
from holdfast.store.sqlite.read_only import open_read_only
from holdfast.testing import ManualClock
from support.cli.commands import clean_env, command, drop_privileges, real
from support.disks import mounted

PAGE_BYTES = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "work.db"


@pytest.fixture
def queue(path: Path) -> Iterator[SQLiteQueue[AnyMessage]]:
    with SQLiteQueue(path, queue="q") as queue:
        yield queue  # type: ignore[misc]


@pytest.fixture
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of mounts with one disk, also where temporary files are in memory."""
    mounts = tmp_path_factory.mktemp("proc") / "mounts"
    mounts.write_text("x / ext4 rw 0 0\n")
    return mounts


def examine(
    path: Path, name: str = "q", clock: Clock = SYSTEM_CLOCK, mounts: Path = MOUNTS
) -> dict[str, CheckResult]:
    """Return the results by check."""
    results = examine_sqlite_queue(path, name, clock=clock, mounts=mounts)
    return {result.check: result for result in results}


def levels(results: dict[str, CheckResult]) -> dict[str, CheckLevel]:
    return {
        name: result.level
        for name, result in results.items()
        if result.level is not CheckLevel.OK
    }


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_healthy_queue_passes_every_check(
    queue: SQLiteQueue[AnyMessage], path: Path, mounts: Path
) -> None:
    queue.push(AnyMessage())
    queue.poll()
    results = examine(path, mounts=mounts)
    assert levels(results) == {}
    assert list(results) == [
        "filesystem", "space", "access", "permissions", "schema", "log", "integrity",
        "workers", "dead letters",
    ]  # fmt: skip
    assert results["workers"].found == "1 message held, 0 waiting"


def test_every_result_that_is_not_ok_has_a_remedy(tmp_path: Path, path: Path) -> None:
    with SQLiteQueue(path, queue="q") as queue:
        queue.push(AnyMessage())  # type: ignore[arg-type]
    path.chmod(0o666)
    for name in ("q", "other"):
        for result in [*examine(path, name).values(), *examine(tmp_path / "no.db").values()]:
            assert result.remedy or result.level is CheckLevel.OK, result


# -- it changes nothing


def test_a_closed_file_is_not_changed_and_no_file_appears(path: Path, mounts: Path) -> None:
    SQLiteQueue(path, queue="q").close()
    before = read_files(path.parent)
    assert list(before) == ["work.db"]
    assert levels(examine(path, mounts=mounts)) == {}
    assert read_files(path.parent) == before


CRASH = """
import os, sys
from holdfast import AnyMessage, SQLiteQueue
SQLiteQueue(sys.argv[1], queue="q").push_many(AnyMessage(id=str(n)) for n in range(9))
os.kill(os.getpid(), 9)
"""


def test_the_log_that_a_killed_process_left_is_read_and_kept(path: Path) -> None:
    subprocess.run([sys.executable, "-c", CRASH, str(path)], check=False)
    before = read_files(path.parent)
    assert before["work.db-wal"]
    results = examine(path)
    assert "9 messages waiting" in results["workers"].found
    after = read_files(path.parent)
    assert {**after, "work.db-shm": b""} == {**before, "work.db-shm": b""}
    assert SQLiteQueue(path, queue="q").stats().ready == 9  # type: ignore[var-annotated]


def test_a_link_to_a_file_in_use_is_read_with_its_log(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(path)
    with SQLiteQueue(path, queue="q") as queue:
        queue.push(AnyMessage())  # type: ignore[arg-type]
        results = examine(tmp_path / "link.db")
    assert "1 message waiting" in results["workers"].found
    assert "work.db-wal 0600" in results["access"].found
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.db", "new"]


def test_a_file_that_changes_while_it_is_read_is_not_judged(path: Path) -> None:
    """Pages of two states could look like damage. It is read as if no process had it open."""
    SQLiteQueue(path, queue="q").close()
    with pytest.raises(StoreUnavailable, match="a process wrote to it; try again"):
        read_during_a_push(path)


def read_during_a_push(path: Path) -> None:
    with open_read_only(path, "queue") as database, SQLiteQueue(path, queue="q") as queue:
        assert database.query("SELECT count(*) AS count FROM messages") == [{"count": 0}]
        queue.push(AnyMessage())  # type: ignore[arg-type]


def test_a_queue_that_does_not_exist_is_a_failure_and_is_not_made(
    tmp_path: Path, mounts: Path
) -> None:
    results = examine(tmp_path / "new" / "work.db", mounts=mounts)
    assert results["queue"].level is CheckLevel.FAIL
    assert "push" in results["queue"].remedy
    assert results["filesystem"].level is CheckLevel.OK  # the place was checked anyway
    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_is_not_in_the_file_is_a_failure_with_those_that_are(path: Path) -> None:
    SQLiteQueue(path, queue="q").close()
    results = examine(path, "other")
    assert results["queue"].level is CheckLevel.FAIL
    assert "there is no queue 'other'" in results["queue"].found
    assert results["queue"].found.endswith("it has q")


# -- the place


@pytest.mark.parametrize(
    ("kind", "level", "text"),
    [
        ("nfs4", CheckLevel.FAIL, "or SQS for several machines"),
        ("fuse.sshfs", CheckLevel.FAIL, "is on fuse.sshfs"),
        ("tmpfs", CheckLevel.WARN, "in memory"),
        ("xfs", CheckLevel.OK, "xfs, mounted at /"),
    ],
)
def test_the_kind_of_the_filesystem_is_judged(
    path: Path, tmp_path: Path, kind: str, level: CheckLevel, text: str
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"x / {kind} rw 0 0\n")
    results = examine_sqlite_queue(path, "q", mounts=mounts)
    [result] = [result for result in results if result.check == "filesystem"]
    assert result.level is level
    assert text in result.found


def test_a_small_disk_in_memory_has_two_problems(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
        SQLiteQueue(disk / "work.db", queue="q").close()
        results = examine(disk / "work.db")
        assert levels(results) == {
            "filesystem": CheckLevel.WARN,
            "space": CheckLevel.FAIL,
        }
        assert (
            "larger disk" in results["space"].remedy
        )  # a purge would need space, and free none


# -- the file


@pytest.mark.parametrize(
    ("file", "log", "text"),
    [
        (0o644, 0o644, "every user of this machine can read"),
        (0o600, 0o604, "every user of this machine can read"),
        (0o660, 0o600, "its group can use only some of the files"),
    ],
)
def test_modes_that_show_too_much_are_reported(
    queue: SQLiteQueue[AnyMessage], path: Path, file: int, log: int, text: str
) -> None:
    queue.push(AnyMessage())
    path.chmod(file)
    path.with_name("work.db-wal").chmod(log)
    result = examine(path)["access"]
    assert result.level is CheckLevel.WARN
    assert text in result.found
    assert "chmod" in result.remedy


def run_as_another_user(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run doctor on the queue of the fixtures."""
    return subprocess.run(
        command("doctor", "sqlite:new/work.db/q", *options),
        cwd=folder,
        env=clean_env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=drop_privileges,
    )


@pytest.mark.parametrize("closed", ["new/work.db", "new/work.db-wal", "new"])
def test_a_user_without_permissions_is_told_what_to_do(
    path: Path, tmp_path: Path, closed: str
) -> None:
    subprocess.run([sys.executable, "-c", CRASH, str(path)], check=False)
    mode = (tmp_path / closed).stat().st_mode
    (tmp_path / closed).chmod(0o555 if closed == "new" else 0o400)
    ran = run_as_another_user(tmp_path, "--json")
    (tmp_path / closed).chmod(mode)
    assert ran.returncode == 1, ran.stderr
    results = {result["check"]: result for result in json.loads(ran.stdout)}
    assert results["permissions"]["level"] == "fail"
    assert closed in results["permissions"]["found"]


def test_a_folder_that_cannot_be_entered_is_one_failure(path: Path, tmp_path: Path) -> None:
    SQLiteQueue(path, queue="q").close()
    path.parent.chmod(0)
    ran = run_as_another_user(tmp_path)
    path.parent.chmod(0o700)
    assert ran.returncode == 1, ran.stderr
    assert "cannot be checked: Permission denied" in ran.stdout


def test_the_tables_of_another_application_or_version_are_a_failure(tmp_path: Path) -> None:
    open_jobs(tmp_path / "jobs.db").close()
    result = examine(tmp_path / "jobs.db")["schema"]
    assert result.level is CheckLevel.FAIL
    assert "of another application, not a queue" in result.found
    SQLiteQueue(tmp_path / "work.db", queue="q").close()
    with closing(sqlite3.connect(tmp_path / "work.db")) as newer:
        newer.execute("PRAGMA user_version = 99")
    assert "update holdfast" in examine(tmp_path / "work.db")["schema"].found


def test_damage_in_the_middle_is_found(path: Path) -> None:
    with SQLiteQueue(path, queue="q") as queue:
        queue.push_many(AnyMessage(text="x" * 500) for _ in range(300))  # type: ignore[misc]
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // PAGE_BYTES * PAGE_BYTES)
        file.write(b"\xa5" * 8 * PAGE_BYTES)
    result = examine(path)["integrity"]
    assert result.level is CheckLevel.FAIL
    assert "damaged" in result.found
    assert "backup" in result.remedy


def test_a_file_that_is_not_a_database_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    path.write_bytes(b"my notes of the year\n" * 500)
    ran = real(tmp_path, "doctor", "sqlite:work.db")
    assert ran.code == 1
    assert "it is not a SQLite database" in ran.out
    assert path.read_bytes() == b"my notes of the year\n" * 500


def test_a_large_file_is_not_read_completely(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is not changed on the disk: a sparse end is not part of the database."""
    SQLiteQueue(path, queue="q").close()
    os.truncate(path, (1 << 30) + PAGE_BYTES)
    result = examine(path)["integrity"]
    assert result.level is CheckLevel.OK
    assert "not checked, because it has 1.0 GiB" in result.found
    assert "PRAGMA quick_check" in result.found


def test_a_log_that_a_reader_keeps_from_being_emptied_is_reported(
    queue: SQLiteQueue[AnyMessage], path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        for _ in range(3):
            queue.push_many(AnyMessage(text="x" * 900_000) for _ in range(30))
        result = examine(path)["log"]
    assert path.with_name("work.db-wal").stat().st_size > sqlite_file._WARN_LOG_BYTES
    assert result.level is CheckLevel.WARN
    assert "fuser" in result.remedy


# -- the contents


def test_work_without_a_worker_and_dead_letters_are_reported(path: Path) -> None:
    clock = ManualClock()
    with SQLiteQueue(path, queue="q", clock=clock, lease_seconds=30.0) as queue:
        queue.push_many(AnyMessage(id=f"{n}") for n in range(4))  # type: ignore[misc]
        first, _ = queue.poll(2)
        queue.dead_letter(first, "no use")
        clock.advance(61.0)
        results = examine(path, clock=clock)
    assert "2 messages waiting and 1 expired lease" in results["workers"].found
    assert results["workers"].level is CheckLevel.WARN
    assert results["dead letters"].level is CheckLevel.WARN
