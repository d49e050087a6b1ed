"""SQLiteJobs with real processes that are killed, forked, or lack disk space or permissions."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from holdfast.exports.errors import JobClosed, StoreUnavailable
from holdfast.exports.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
)
from holdfast.exports.sqlite_jobs import SQLiteJobs
from support.cli.commands import drop_privileges
from support.files.crash import run_in_child
from support.fork_server import SmallChild
from support.sqlite.statements import assert_counters_match_rows, count_kills
from support.waiting import wait_until

TASKS = 200
FORKS = 8
WAIT_TIMEOUT_SECONDS = 60.0
WRITE = """
import sys
from pathlib import Path
from holdfast.exports.sqlite_jobs import SQLiteJobs
SQLiteJobs(Path(sys.argv[1])).note_progress("job")
"""

Say = Callable[[str], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


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


def get_job(jobs: SQLiteJobs) -> ExportJob:
    job = jobs.find_by_id("job")
    assert job is not None
    return job


def count_completed(jobs: SQLiteJobs) -> int:
    return get_job(jobs).state.completed_tasks


def assert_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def complete(jobs: SQLiteJobs, *task_ids: str) -> int:
    return jobs.record_results("job", [TaskResult("job", each, True, 1) for each in task_ids])


def wait_for_child(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- reporters that are killed


def report_results(path: Path, number: int, say: Say) -> None:
    """Report every task in a random order, including those already reported; then claim the
    outcome.
    """
    random = Random(number)
    with SQLiteJobs(path, busy_seconds=WAIT_TIMEOUT_SECONDS) as jobs:
        ids = [task.task_id for task in jobs.tasks("job")]
        random.shuffle(ids)
        while ids:
            size = random.randint(1, 4)
            batch, ids = ids[:size], ids[size:]
            try:
                complete(jobs, *batch)
            except JobClosed:
                break  # another process reported the last task and decided first
        if jobs.claim_outcome("job"):
            say("won")


@pytest.mark.requirement("R004-051", "R004-069", "R004-105")
def test_four_report_the_same_tasks_two_are_killed_and_one_decides(path: Path) -> None:
    """(JB-01, JB-02, JB-06, LO-01, I-JB-1, I-JB-3, I-JB-5)."""
    random = Random(4)
    with create_store(path) as jobs:
        reporters = [SmallChild(partial(report_results, path, number)) for number in range(4)]
        killed = random.sample(reporters, 2)
        moments = sorted(random.sample(range(TASKS // 2), 2))
        for reporter, moment in zip(killed, moments, strict=True):
            wait_until(lambda moment=moment: count_completed(jobs) >= moment)
            os.kill(reporter.pid, signal.SIGKILL)
            assert_counters_match_rows(jobs)
        endings = [(each, ending) for each in reporters if (ending := each.wait_for_stop())]
        assert [each for each, ending in endings if ending.killed and each not in killed] == []
        assert count_completed(jobs) == TASKS
        assert_counters_match_rows(jobs)
        assert "".join(ending.output for _, ending in endings).count("won") <= 1
        assert get_job(jobs).callback.state is CallbackState.PENDING
        assert jobs.claim_outcome("job") is None
        assert jobs.settle("job", JobStatus.COMPLETED, None)
    assert_sound(path)


def test_a_reporter_killed_at_any_statement_leaves_consistent_counters(path: Path) -> None:
    """Rows and counters are written together, or not at all (JB-01, JB-06, I-JB-1)."""
    jobs = create_store(path, 3)
    completed, failed = (task.task_id for task in jobs.tasks("job", limit=2))
    stalled = JobError("JobStalled", "no task was finished")
    batch = [TaskResult("job", completed, True), TaskResult("job", failed, False, 0, stalled)]
    kills = count_kills(
        jobs._database,
        lambda: jobs.record_results("job", batch),
        lambda: assert_counters_match_rows(jobs),
    )
    assert kills >= 5  # BEGIN, SELECT, two rows, the job, COMMIT
    assert (count_completed(jobs), get_job(jobs).state.failed_tasks) == (1, 1)
    assert_sound(path)


# -- forks


def fork_with_open_store(path: Path, _: Say) -> None:
    """Let a child use a store that was in use, while the parent closes it."""
    jobs = SQLiteJobs(path)
    ids = [task.task_id for task in jobs.tasks("job")]
    complete(jobs, ids[0])
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        complete(jobs, ids[1])
        os.read(read_end, 1)  # until the parent has closed the file
        complete(jobs, ids[2])
        os._exit(0)
    complete(jobs, ids[3])
    jobs.close()
    # Another connection is the last to close, so it checkpoints the log and deletes it.
    with SQLiteJobs(path) as another:
        complete(another, ids[4])
    os.write(write_end, b"!")
    wait_for_child(child)


def test_a_forked_child_and_its_parent_lose_no_writes(path: Path) -> None:
    """Both use the store at the same time (LO-02)."""
    create_store(path, 5).close()
    run_in_child(partial(fork_with_open_store, path))
    assert count_completed(SQLiteJobs(path)) == 5
    assert_sound(path)


def fork_beside_writers(path: Path, _: Say) -> None:
    """Fork again and again while other threads write."""
    jobs, stop = SQLiteJobs(path, durability="process"), Event()

    def write() -> None:
        while not stop.is_set():
            jobs.note_progress("job")

    threads = [Thread(target=write, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(FORKS):
        child = os.fork()
        if child == 0:
            jobs.increment_completed_tasks("job")
            os._exit(0)
        wait_for_child(child)
    stop.set()
    for thread in threads:
        thread.join()


def test_forks_beside_busy_threads_are_safe(path: Path) -> None:
    """The child inherits no locked lock and no open transaction (LO-02)."""
    create_store(path, 0).close()
    run_in_child(partial(fork_beside_writers, path))
    assert count_completed(SQLiteJobs(path)) == FORKS
    assert_counters_match_rows(SQLiteJobs(path))
    assert_sound(path)


def fork_in_transaction(path: Path, say: Say) -> None:
    """Fork while another thread is in a transaction that does not end."""
    jobs, in_transaction, stop = SQLiteJobs(path, busy_seconds=0.05), Event(), Event()

    def hold_transaction() -> None:
        with jobs._database.begin_write():
            in_transaction.set()
            stop.wait(WAIT_TIMEOUT_SECONDS)

    thread = Thread(target=hold_transaction, daemon=True)
    thread.start()
    in_transaction.wait(WAIT_TIMEOUT_SECONDS)
    child = os.fork()
    if child == 0:
        try:
            jobs.note_progress("job")
        except StoreUnavailable as error:
            say(str(error))
        os._exit(0)
    wait_for_child(child)
    stop.set()
    thread.join()
    jobs.increment_completed_tasks("job")


def test_a_child_forked_amid_a_transaction_gets_an_error(path: Path) -> None:
    """The child must not trust the lock list that it inherited from SQLite (LO-02)."""
    create_store(path, 0).close()
    error = run_in_child(partial(fork_in_transaction, path)).output
    assert "forked while another thread used it" in error
    assert count_completed(SQLiteJobs(path)) == 1


# -- the disk


def fill_disk(path: Path, say: Say) -> None:
    """Write while files cannot grow, and again when they can."""
    jobs = SQLiteJobs(path)
    more = [
        ExportTask.create("job", f"https://files.example/more/{n}", "k") for n in range(5_000)
    ]
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    for _ in range(2):
        try:
            jobs.add_tasks("job", more)
        except StoreUnavailable as error:
            say(f"{error}\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    jobs.add_tasks("job", more)


def test_a_full_disk_is_unavailable_and_leaves_the_store_sound(path: Path) -> None:
    with SQLiteJobs(path) as jobs:
        jobs.save(ExportJob.create("job", "export", "user"))
        first, second = run_in_child(partial(fill_disk, path)).output.splitlines()
        assert "is unavailable: the disk failed or is full" in first
        assert second == first
        assert len(jobs.tasks("job", limit=10_000)) == 5_000
    assert_sound(path)


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
        ran = subprocess.run(
            [sys.executable, "-c", WRITE, str(path)],
            check=False,
            capture_output=True,
            text=True,
            preexec_fn=drop_privileges,
        )
    finally:
        folder.chmod(0o700)
    error = ran.stderr.splitlines()[-1]
    assert error.startswith("holdfast.errors.ConfigError: ")
    assert str(path) in error
    assert ("permissions" if existing else "Permission denied") in error
