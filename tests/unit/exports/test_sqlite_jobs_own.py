"""Tests of SQLiteJobs beside the contract: its transactions, connections, cost and
retention.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import pytest

from contracts.jobs.concurrency import THREADS, run_together
from contracts.jobs.support import (
    GIVEN_UP,
    TOKEN,
    decide_job,
    make_success,
    make_tasks,
    new_job,
    read_job,
    start_job,
)
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.model import ExportTask, JobStatus, TaskStatus
from holdfast.exports.sqlite_jobs import JOBS, SQLiteJobs
from holdfast.store.sqlite import path_check
from holdfast.store.sqlite.connection import Durability, _is_current, translate_error
from holdfast.testing import ManualClock

# -- safety of writes


@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
def test_each_commit_reaches_the_disk_unless_configured_otherwise(
    tmp_path: Path, durability: Durability, synchronous: int
) -> None:
    """2 is FULL, which syncs every commit; 1 is NORMAL, which syncs at checkpoints (LO-01)."""
    default = SQLiteJobs(tmp_path / "default.db")
    with default._database.begin_read() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    jobs = SQLiteJobs(tmp_path / "jobs.db", durability=durability)
    with jobs._database.begin_read() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_that_others_keep_locked_is_unavailable_and_then_works_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "jobs.db"
    jobs = SQLiteJobs(path, clock=clock, busy_seconds=0.05)
    jobs.save(new_job(clock))
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked for too long"):
            jobs.set_total_tasks("job", 3)
        assert not read_job(jobs).sealed  # readers do not wait for writers
    jobs.set_total_tasks("job", 3)
    assert read_job(jobs).remaining_tasks == 3


def test_a_full_disk_has_its_own_message(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "tiny.db")) as tiny:
        tiny.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.Error) as full:
            tiny.execute("CREATE TABLE t (c)")
    error = translate_error(full.value, tmp_path)
    assert isinstance(error, StoreUnavailable)
    assert "free some space" in str(error)


def test_an_unknown_sqlite_error_is_raised_unchanged(tmp_path: Path) -> None:
    jobs = SQLiteJobs(tmp_path / "jobs.db")
    with (
        pytest.raises(sqlite3.OperationalError, match="no such table"),
        jobs._database.begin_write() as connection,
    ):
        connection.execute("SELECT * FROM nonsense")
    assert jobs.find_by_status(JobStatus.FAILED) == []


def test_texts_that_are_not_utf_8_block_no_job(tmp_path: Path, clock: ManualClock) -> None:
    jobs = SQLiteJobs(tmp_path / "jobs.db", clock=clock)
    jobs.save(new_job(clock))
    jobs.save(new_job(clock, "good"))
    columns = ("export_id", "user_id", "task_token", "error_code", "error_message", "metadata")
    with jobs._database.begin_write() as connection:
        for name in columns:
            value = "CAST(x'68ff' AS TEXT)"
            connection.execute(f"UPDATE jobs SET {name} = {value} WHERE job_id = 'job'")
    [bad, good] = jobs.find_by_status(JobStatus.PROCESSING)
    assert (bad.export_id, good.job_id) == ("h\ufffd", "good")


def test_a_store_that_was_removed_takes_no_writes(tmp_path: Path, clock: ManualClock) -> None:
    """An open file still accepts writes, but no process would ever read them."""
    path = tmp_path / "jobs.db"
    jobs = SQLiteJobs(path, clock=clock)
    jobs.save(new_job(clock))
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(StoreUnavailable, match="is gone"):
        jobs.set_total_tasks("job", 3)
    SQLiteJobs(path, clock=clock).save(new_job(clock, "another"))
    assert jobs.find_by_id("job") is None
    assert jobs.find_by_id("another") is not None


def test_eight_threads_that_create_the_store_at_once_create_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    def make(number: int) -> None:
        SQLiteJobs(tmp_path / "jobs.db", clock=clock).save(new_job(clock, f"{number}"))

    run_together(make)
    jobs = SQLiteJobs(tmp_path / "jobs.db").find_by_status(JobStatus.PROCESSING)
    assert sorted(job.job_id for job in jobs) == [f"{n}" for n in range(THREADS)]


def test_creating_the_store_waits_for_another_writer(tmp_path: Path) -> None:
    """SQLite itself gives up at once if it must enable the log while another process writes."""
    path = tmp_path / "jobs.db"
    path_check.prepare_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="locked for too long"):
            SQLiteJobs(path, busy_seconds=0.2)
        assert time.monotonic() - began >= 0.2
    SQLiteJobs(path, busy_seconds=0.2)


def test_tables_that_appear_during_the_check_are_not_mistaken_for_another_application_s(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    path_check.prepare_file(path)

    def meanwhile(statement: str) -> None:
        if "sqlite_master" in statement:
            with suppress(StoreUnavailable):
                SQLiteJobs(path, busy_seconds=0.05)

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.set_trace_callback(meanwhile)
        assert not _is_current(connection, path, JOBS)


def test_a_slow_listing_is_stored_as_it_comes_and_others_may_write(
    fast_path: Path, clock: ManualClock
) -> None:
    jobs = SQLiteJobs(fast_path / "jobs.db", clock=clock)
    other = SQLiteJobs(fast_path / "jobs.db", clock=clock, busy_seconds=0.05)
    jobs.save(new_job(clock))

    def listing() -> Iterator[ExportTask]:
        yield from make_tasks("job", 2_000)
        assert count_rows(other) >= 1_000
        other.note_progress("job")
        yield from make_tasks("job", 5, first=2_000)

    jobs.add_tasks("job", listing())
    assert count_rows(jobs) == 2_005


# -- connections


def count_open_files(path: Path) -> int:
    """Return how often this process has the store open."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return links.count(str(path))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_threads_that_ended_leave_no_connection_behind(
    tmp_path: Path, clock: ManualClock
) -> None:
    """LO-02 (I-JB-14)."""
    path = tmp_path / "jobs.db"
    jobs = SQLiteJobs(path, clock=clock)
    jobs.save(new_job(clock))
    for _ in range(20):
        thread = Thread(target=jobs.note_progress, args=("job",))
        thread.start()
        thread.join()
    assert count_open_files(path) == 2  # for reads and for writes
    jobs.close()
    assert count_open_files(path) == 0
    assert read_job(jobs).status is JobStatus.PROCESSING  # and it opens again
    jobs.close()
    assert count_open_files(path) == 0


def test_a_connection_in_use_is_closed_when_its_transaction_is_over(
    tmp_path: Path, clock: ManualClock
) -> None:
    jobs = SQLiteJobs(tmp_path / "jobs.db", clock=clock)
    with jobs._database.begin_write() as connection:
        jobs.close()
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


# -- cost


def test_a_result_costs_the_same_in_a_large_job(fast_path: Path, clock: ManualClock) -> None:
    """The cost is counted in steps of SQLite's virtual machine, which do not depend on the
    computer (JB-44).
    """
    jobs = SQLiteJobs(fast_path / "jobs.db", clock=clock)
    steps = {}
    for count in (100, 5_000):
        tasks = start_job(jobs, clock, count, job_id=f"{count}")
        ran = []
        with jobs._database.begin_write() as connection:
            connection.set_progress_handler(lambda ran=ran: ran.append(1), 1)
        assert (
            jobs.record_results(f"{count}", [make_success(task) for task in tasks[:50]]) == 50
        )
        with jobs._database.begin_write() as connection:
            connection.set_progress_handler(None, 0)
        steps[count] = len(ran)
    assert steps[100] > 50
    assert steps[5_000] <= 1.1 * steps[100]


def explain_select(jobs: SQLiteJobs, table: str, call: Callable[[], object]) -> str:
    """Return the plan of the statement with which the call reads the table."""
    statements: list[str] = []
    with jobs._database.begin_read() as connection:
        connection.set_trace_callback(statements.append)
    call()
    with jobs._database.begin_read() as connection:
        connection.set_trace_callback(None)
        [select] = [text for text in statements if text.startswith(f"SELECT * FROM {table} ")]
        [step] = connection.execute(f"EXPLAIN QUERY PLAN {select}").fetchall()
    return str(step[3])


def test_jobs_are_found_by_status_without_reading_the_others(tmp_path: Path) -> None:
    jobs = SQLiteJobs(tmp_path / "jobs.db")
    plan = explain_select(jobs, "jobs", lambda: jobs.find_by_status(JobStatus.FAILED))
    assert "USING INDEX jobs_by_status (status=?)" in plan


@pytest.mark.parametrize("status", [None, TaskStatus.PENDING])
def test_a_page_of_tasks_is_read_in_order_without_the_pages_before(
    tmp_path: Path, clock: ManualClock, status: TaskStatus | None
) -> None:
    jobs = SQLiteJobs(tmp_path / "jobs.db")
    jobs.save(new_job(clock))
    plan = explain_select(
        jobs, "tasks", lambda: jobs.tasks("job", status=status, after="after", limit=10)
    )
    assert "USING PRIMARY KEY (job_no=? AND task_id>?)" in plan


# -- retention


@pytest.mark.requirement("R004-065", "R004-129")
def test_finished_jobs_are_forgotten_with_their_tasks_when_their_time_has_come(
    fast_path: Path, clock: ManualClock
) -> None:
    jobs = SQLiteJobs(fast_path / "jobs.db", clock=clock, keep_seconds=60.0)
    for number in range(3):
        decide_job(jobs, clock, job_id=f"{number}")
    start_job(jobs, clock, job_id="active")
    jobs.settle("0", JobStatus.COMPLETED, None)
    clock.advance(59.0)
    jobs.settle("1", JobStatus.COMPLETED, None)
    assert jobs.find_by_id("0") is not None
    clock.advance(1.0)
    jobs.settle("2", JobStatus.COMPLETED, None)
    assert jobs.find_by_id("0") is None
    assert [jobs.find_by_id(job_id) is None for job_id in ("1", "2", "active")] == [False] * 3
    assert count_rows(jobs) == 2 + 2 + 3


def test_a_large_job_is_forgotten_in_slices_and_its_id_is_free_at_once(
    fast_path: Path, clock: ManualClock
) -> None:
    jobs = SQLiteJobs(fast_path / "jobs.db", clock=clock, keep_seconds=60.0)
    jobs.save(new_job(clock, "first"))
    # the last one, whose number must not be used again
    start_job(jobs, clock, 2_600, job_id="large")
    jobs.update_job_status("large", JobStatus.FAILED)
    clock.advance(61.0)
    jobs.give_up("first", GIVEN_UP)
    jobs.settle("first", JobStatus.FAILED, GIVEN_UP)
    left = count_rows(jobs)
    assert 1_000 < left < 2_600
    jobs.save(new_job(clock, "large"))
    assert jobs.tasks("large") == []
    for number in range(3):
        settle_small_job(jobs, clock, f"{number}")
    assert count_rows(jobs) == 0
    assert jobs.find_by_id("large") is not None


def test_a_job_is_settled_even_if_others_cannot_be_forgotten_now(
    fast_path: Path, clock: ManualClock
) -> None:
    jobs = SQLiteJobs(fast_path / "jobs.db", clock=clock, keep_seconds=60.0, busy_seconds=0.05)
    settle_small_job(jobs, clock, "old")
    decide_job(jobs, clock)
    clock.advance(61.0)
    with closing(sqlite3.connect(fast_path / "jobs.db", isolation_level=None)) as other:

        def meanwhile(statement: str) -> None:
            if "ttl <=" in statement and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")

        with jobs._database.begin_read() as connection:
            connection.set_trace_callback(meanwhile)
        assert jobs.settle("job", JobStatus.COMPLETED, None) is True
        assert other.in_transaction
    assert jobs.find_by_id("old") is not None
    settle_small_job(jobs, clock, "next")
    assert jobs.find_by_id("old") is None


def test_without_keep_seconds_jobs_are_kept_forever(
    fast_path: Path, clock: ManualClock
) -> None:
    jobs = SQLiteJobs(fast_path / "jobs.db", clock=clock)
    decide_job(jobs, clock, job_id="old")
    jobs.settle("old", JobStatus.COMPLETED, None)
    clock.advance(1e9)
    settle_small_job(jobs, clock, "new")
    assert jobs.find_by_id("old") is not None


def settle_small_job(jobs: SQLiteJobs, clock: ManualClock, job_id: str) -> None:
    jobs.save(new_job(clock, job_id))
    assert jobs.give_up(job_id, GIVEN_UP)
    assert jobs.settle(job_id, JobStatus.FAILED, GIVEN_UP)


def count_rows(jobs: SQLiteJobs) -> int:
    with jobs._database.begin_read() as connection:
        return int(connection.execute("SELECT count(*) FROM tasks").fetchone()[0])


def test_a_file_without_the_columns_of_later_commits_gets_them(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A process of the earlier commit has it open, and goes on."""
    path = tmp_path / "jobs.db"
    with SQLiteJobs(path, clock=clock) as jobs:
        start_job(jobs, clock, 1, task_token=TOKEN)
    earlier = sqlite3.connect(path)
    earlier.execute("ALTER TABLE jobs DROP COLUMN token_closed_at")
    with SQLiteJobs(path, clock=clock) as jobs, SQLiteJobs(path, clock=clock) as other:
        noted = jobs.note_token_closed("job", TOKEN, GIVEN_UP)
        assert noted == other.find_by_id("job")
    earlier.execute("UPDATE jobs SET completed_tasks = 1")
    earlier.commit()
    earlier.close()
