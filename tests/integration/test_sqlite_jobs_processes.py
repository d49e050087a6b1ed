"""SQLiteJobs among real processes: killed at any point, forked, short of disk and rights."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlite_jobs_roles as roles
from cli_kit import without_privileges
from sqlite_jobs_roles import PATIENCE_SECONDS, assert_books_agree

from holdfast.adapters.local.sqlite import SQLiteJobs
from holdfast.jobs.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobStatus,
)

TASKS = 200


def stored(path: Path, tasks: int = TASKS) -> SQLiteJobs:
    """A sealed job that is being worked on."""
    jobs = SQLiteJobs(path)
    jobs.save(ExportJob.create("job", "export", "user", task_token="token", now=1.0))
    listed = (ExportTask.of("job", f"https://files.example/{n}", f"{n}") for n in range(tasks))
    jobs.add_tasks("job", listed)
    jobs.update_job_status("job", JobStatus.DOWNLOADING)
    jobs.set_total_tasks("job", tasks)
    return jobs


def begin(role: Callable[..., None], path: Path, number: int = 0, **settings: Any) -> Any:
    command = [sys.executable, roles.__file__, role.__name__, str(path), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **settings)


def said_by(role: Callable[..., None], path: Path, **settings: Any) -> list[str]:
    with begin(role, path, **settings) as process:
        try:
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0
    return str(said).splitlines()


def job_of(jobs: SQLiteJobs) -> ExportJob:
    job = jobs.find_by_id("job")
    assert job is not None
    return job


def _assert_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_four_report_the_same_tasks_two_are_killed_and_one_decides(tmp_path: Path) -> None:
    """R004-051, R004-069, R004-105; JB-01, JB-02, JB-06, LO-01, I-JB-1, I-JB-3, I-JB-5."""
    random = Random(4)
    path = tmp_path / "jobs.db"
    with stored(path) as jobs:
        four = [begin(roles.reporter, path, number) for number in range(4)]
        try:
            killed = _kill_two(jobs, four, random)
            said = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in four]
        finally:
            for process in four:
                process.kill()
        assert [process.returncode for process in four if process not in killed] == [0, 0]
        assert job_of(jobs).state.completed_tasks == TASKS
        assert_books_agree(jobs)
        assert "".join(said).count("won") <= 1
        assert job_of(jobs).callback.state is CallbackState.PENDING
        assert jobs.claim_outcome("job") is None
        assert jobs.settle("job", JobStatus.COMPLETED, None)
    _assert_sound(path)


def _kill_two(jobs: SQLiteJobs, processes: list[Any], random: Random) -> list[Any]:
    killed = random.sample(processes, 2)
    moments = sorted(random.sample(range(TASKS // 2), 2))
    for process, moment in zip(killed, moments, strict=True):
        _wait_until(lambda moment=moment: job_of(jobs).state.completed_tasks >= moment)
        process.kill()
        assert_books_agree(jobs)
    return killed


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.002)


def test_a_reporter_killed_at_any_statement_leaves_the_books_in_order(tmp_path: Path) -> None:
    """JB-01, JB-06, I-JB-1: rows and counters are written together, or not at all."""
    path = tmp_path / "jobs.db"
    stored(path, 3).close()
    [deaths] = said_by(roles.crasher, path)
    assert int(deaths) >= 5  # BEGIN, SELECT, two rows, the job, COMMIT
    jobs = SQLiteJobs(path)
    assert (job_of(jobs).state.completed_tasks, job_of(jobs).state.failed_tasks) == (1, 1)
    _assert_sound(path)


def test_a_forked_child_and_its_parent_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """LO-02."""
    path = tmp_path / "jobs.db"
    stored(path, 5).close()
    assert said_by(roles.forker, path) == ["5"]
    _assert_sound(path)


def test_forks_beside_busy_threads_are_safe(tmp_path: Path) -> None:
    """LO-02: no lock is inherited locked, no half transaction is taken along."""
    path = tmp_path / "jobs.db"
    stored(path, 0).close()
    assert said_by(roles.busy_forker, path) == [f"{roles.FORKS}"]
    assert_books_agree(SQLiteJobs(path))
    _assert_sound(path)


def test_a_child_forked_amid_a_transaction_is_told_so(tmp_path: Path) -> None:
    """LO-02: what it inherited of SQLite's locks is not to be trusted."""
    path = tmp_path / "jobs.db"
    stored(path, 0).close()
    [error] = said_by(roles.forker_in_a_transaction, path)
    assert "forked while it was in use" in error
    assert job_of(SQLiteJobs(path)).state.completed_tasks == 1


def test_a_full_disk_is_unavailable_and_leaves_the_store_sound(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with SQLiteJobs(path) as jobs:
        jobs.save(ExportJob.create("job", "export", "user"))
    first, again, stored_then = said_by(roles.short_of_disk, path)
    assert "does not answer: the disk failed or is full" in first
    assert again == first
    assert stored_then == "5000"
    _assert_sound(path)


@pytest.mark.parametrize("existing", [False, True])
def test_a_read_only_place_is_refused(tmp_path: Path, existing: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "jobs.db"
    if existing:
        stored(path, 1).close()
        path.chmod(0o400)
    folder.chmod(0o500)
    try:
        [error] = said_by(roles.without_rights, path, preexec_fn=without_privileges)
    finally:
        folder.chmod(0o700)
    assert str(path) in error
    assert ("rights" if existing else "Permission denied") in error
