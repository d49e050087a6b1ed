"""SQLiteJobs with real processes that are killed, forked, or lack disk space or permissions."""

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

from holdfast.exports.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobStatus,
)
from holdfast.exports.sqlite_jobs import SQLiteJobs
from support.cli.commands import drop_privileges
from support.sqlite import job_processes as roles
from support.sqlite.job_processes import WAIT_TIMEOUT_SECONDS, assert_counters_match_rows

TASKS = 200


def create_store(path: Path, tasks: int = TASKS) -> SQLiteJobs:
    """Store a sealed job that is in progress."""
    jobs = SQLiteJobs(path)
    jobs.save(ExportJob.create("job", "export", "user", task_token="token", now=1.0))
    new_tasks = (
        ExportTask.create("job", f"https://files.example/{n}", f"{n}") for n in range(tasks)
    )
    jobs.add_tasks("job", new_tasks)
    jobs.update_job_status("job", JobStatus.DOWNLOADING)
    jobs.set_total_tasks("job", tasks)
    return jobs


def start_role(role: Callable[..., None], path: Path, number: int = 0, **settings: Any) -> Any:
    command = [sys.executable, roles.__file__, role.__name__, str(path), str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **settings)


def run_role(role: Callable[..., None], path: Path, **settings: Any) -> list[str]:
    with start_role(role, path, **settings) as process:
        try:
            output, _ = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0
    return str(output).splitlines()


def get_job(jobs: SQLiteJobs) -> ExportJob:
    job = jobs.find_by_id("job")
    assert job is not None
    return job


def _assert_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.requirement("R004-051", "R004-069", "R004-105")
def test_four_report_the_same_tasks_two_are_killed_and_one_decides(tmp_path: Path) -> None:
    """(JB-01, JB-02, JB-06, LO-01, I-JB-1, I-JB-3, I-JB-5)."""
    random = Random(4)
    path = tmp_path / "jobs.db"
    with create_store(path) as jobs:
        reporters = [start_role(roles.report_results, path, number) for number in range(4)]
        try:
            killed = _kill_two(jobs, reporters, random)
            outputs = [
                process.communicate(timeout=WAIT_TIMEOUT_SECONDS)[0] for process in reporters
            ]
        finally:
            for process in reporters:
                process.kill()
        assert [process.returncode for process in reporters if process not in killed] == [0, 0]
        assert get_job(jobs).state.completed_tasks == TASKS
        assert_counters_match_rows(jobs)
        assert "".join(outputs).count("won") <= 1
        assert get_job(jobs).callback.state is CallbackState.PENDING
        assert jobs.claim_outcome("job") is None
        assert jobs.settle("job", JobStatus.COMPLETED, None)
    _assert_sound(path)


def _kill_two(jobs: SQLiteJobs, processes: list[Any], random: Random) -> list[Any]:
    killed = random.sample(processes, 2)
    moments = sorted(random.sample(range(TASKS // 2), 2))
    for process, moment in zip(killed, moments, strict=True):
        _wait_until(lambda moment=moment: get_job(jobs).state.completed_tasks >= moment)
        process.kill()
        assert_counters_match_rows(jobs)
    return killed


def _wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WAIT_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "the condition never became true"
        time.sleep(0.002)


def test_a_reporter_killed_at_any_statement_leaves_consistent_counters(tmp_path: Path) -> None:
    """Rows and counters are written together, or not at all (JB-01, JB-06, I-JB-1)."""
    path = tmp_path / "jobs.db"
    create_store(path, 3).close()
    [deaths] = run_role(roles.crash_at_each_statement, path)
    assert int(deaths) >= 5  # BEGIN, SELECT, two rows, the job, COMMIT
    jobs = SQLiteJobs(path)
    assert (get_job(jobs).state.completed_tasks, get_job(jobs).state.failed_tasks) == (1, 1)
    _assert_sound(path)


def test_a_forked_child_and_its_parent_lose_no_writes(tmp_path: Path) -> None:
    """Both use the store at the same time (LO-02)."""
    path = tmp_path / "jobs.db"
    create_store(path, 5).close()
    assert run_role(roles.fork_with_open_store, path) == ["5"]
    _assert_sound(path)


def test_forks_beside_busy_threads_are_safe(tmp_path: Path) -> None:
    """The child inherits no locked lock and no open transaction (LO-02)."""
    path = tmp_path / "jobs.db"
    create_store(path, 0).close()
    assert run_role(roles.fork_beside_writers, path) == [f"{roles.FORKS}"]
    assert_counters_match_rows(SQLiteJobs(path))
    _assert_sound(path)


def test_a_child_forked_amid_a_transaction_gets_an_error(tmp_path: Path) -> None:
    """The child must not trust the lock list that it inherited from SQLite (LO-02)."""
    path = tmp_path / "jobs.db"
    create_store(path, 0).close()
    [error] = run_role(roles.fork_in_transaction, path)
    assert "forked while another thread used it" in error
    assert get_job(SQLiteJobs(path)).state.completed_tasks == 1


def test_a_full_disk_is_unavailable_and_leaves_the_store_sound(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with SQLiteJobs(path) as jobs:
        jobs.save(ExportJob.create("job", "export", "user"))
    first, second, stored_tasks = run_role(roles.fill_disk, path)
    assert "is unavailable: the disk failed or is full" in first
    assert second == first
    assert stored_tasks == "5000"
    _assert_sound(path)


@pytest.mark.parametrize("existing", [False, True])
def test_a_read_only_place_is_refused(tmp_path: Path, existing: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "jobs.db"
    if existing:
        create_store(path, 1).close()
        path.chmod(0o400)
    folder.chmod(0o500)
    try:
        [error] = run_role(roles.write_without_permission, path, preexec_fn=drop_privileges)
    finally:
        folder.chmod(0o700)
    assert str(path) in error
    assert ("permissions" if existing else "Permission denied") in error
