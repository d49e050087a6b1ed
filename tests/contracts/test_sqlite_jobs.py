"""SQLiteJobs keeps the contract of job stores, and refuses unsuitable files."""

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from contracts.jobs.contract import JobStoreContract
from contracts.jobs.support import TOKEN, OpenRepository, new_job, read_job
from holdfast.errors import ConfigError
from holdfast.exports.errors import JobExists
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.sqlite_jobs import SQLiteJobs
from holdfast.store.sqlite import path_check
from holdfast.testing import ManualClock


class TestSQLiteJobs(JobStoreContract):
    @pytest.fixture
    def open_repository(self, fast_path: Path) -> Iterator[OpenRepository]:
        with ExitStack() as stack:

            def open_store(
                clock: ManualClock, keep_seconds: float | None = None
            ) -> JobStateRepository:
                path = fast_path / "jobs.db"
                return stack.enter_context(
                    SQLiteJobs(path, clock=clock, keep_seconds=keep_seconds)
                )

            yield open_store


# -- the file


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read_the_tokens(tmp_path: Path, clock: ManualClock) -> None:
    """Tokens are in the file and in its log (JB-35)."""
    with SQLiteJobs(tmp_path / "new" / "jobs.db", clock=clock) as jobs:
        jobs.save(new_job(clock, task_token=TOKEN))
        files = list((tmp_path / "new").iterdir())
        assert {path.name for path in files} == {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
        assert {get_mode(path) for path in files} == {0o600}


def test_no_text_of_the_store_shows_a_token(tmp_path: Path, clock: ManualClock) -> None:
    """Neither repr nor errors contain it (I-JB-13)."""
    jobs = SQLiteJobs(tmp_path / "jobs.db", clock=clock)
    jobs.save(new_job(clock, task_token=TOKEN))
    assert TOKEN.reveal() not in repr(jobs) + repr(read_job(jobs))
    with pytest.raises(JobExists) as refused:
        jobs.save(new_job(clock, task_token=TOKEN))
    assert TOKEN.reveal() not in str(refused.value)


def test_a_file_that_is_not_a_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes of the year\n" * 100)
    with pytest.raises(ConfigError, match="not a SQLite database"):
        SQLiteJobs(path)
    assert path.read_text() == "my notes of the year\n" * 100


def test_the_database_of_another_application_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE photos (name)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another application"):
        SQLiteJobs(path)
    assert path.read_bytes() == before


def test_a_store_of_newer_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    SQLiteJobs(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match=r"schema 2, .* supports 1: update"):
        SQLiteJobs(path)


def test_a_folder_is_refused_as_a_job_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        SQLiteJobs(tmp_path)


def test_a_path_below_a_file_is_refused_as_a_job_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot store jobs"):
        SQLiteJobs(tmp_path / "file" / "jobs.db")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "ceph"])
def test_a_network_filesystem_is_refused(tmp_path: Path, kind: str) -> None:
    """The log relies on memory that other machines do not share (LO-01)."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
    with pytest.raises(ConfigError, match=f"is on {kind}.*local disk"):
        path_check.prepare_file(tmp_path / "jobs.db", mounts)
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "tmpfs", "fuseblk"])
def test_a_local_filesystem_is_accepted(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x / nfs4 rw 0 0\n/dev/x {tmp_path} {kind} rw 0 0\n")
    path_check.prepare_file(tmp_path / "jobs.db", mounts)
    assert (tmp_path / "jobs.db").exists()


def test_a_durability_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'power' or 'process'"):
        SQLiteJobs(tmp_path / "jobs.db", durability="hope")  # type: ignore[arg-type]


def test_a_path_may_hold_any_character(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "what? #1 100% ä.db"
    SQLiteJobs(path, clock=clock).save(new_job(clock))
    assert path.exists()
    assert SQLiteJobs(path, clock=clock).find_by_id("job") is not None
