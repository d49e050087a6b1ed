"""SQLiteJobs among real processes: killed at any point, forked, short of disk and rights.

Run as a script this file is one of those processes: `… ROLE PATH NUMBER`.
"""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest
from cli_kit import without_privileges

from holdfast.adapters.local.sqlite import SQLiteJobs
from holdfast.core.errors import ConfigError
from holdfast.jobs.errors import JobClosed, StoreUnavailable
from holdfast.jobs.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
)

PATIENCE_SECONDS = 60.0
TASKS = 200
FORKS = 8
STALLED = JobError("JobStalled", "no task was finished")


# -- roles


def reporter(path: Path, number: int) -> None:
    """Report every task, in an order of its own, and whatever others reported already;
    then ask for the outcome."""
    random = Random(number)
    with SQLiteJobs(path, busy_seconds=PATIENCE_SECONDS) as jobs:
        results = [TaskResult("job", t.task_id, True, 1) for t in jobs.tasks("job")]
        random.shuffle(results)
        while results:
            size = random.randint(1, 4)
            batch, results = results[:size], results[size:]
            try:
                jobs.record_results("job", batch)
            except JobClosed:
                break  # another one had the last, and was faster to ask
        if jobs.claim_outcome("job"):
            print("won", flush=True)


def crasher(path: Path, number: int) -> None:
    """Die at each statement of a batch of results, one after the other; say how many."""
    jobs = SQLiteJobs(path)
    good, bad = (task.task_id for task in jobs.tasks("job", limit=2))
    batch = [TaskResult("job", good, True), TaskResult("job", bad, False, 0, STALLED)]
    deaths = 0
    while True:
        child = os.fork()
        if child == 0:
            _die_at(jobs, deaths)
            os._exit(jobs.record_results("job", batch))
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.waitstatus_to_exitcode(status) == 2
            break
        deaths += 1
        _assert_books_agree(jobs)
    print(deaths)


def _die_at(jobs: SQLiteJobs, statement: int) -> None:
    seen: list[str] = []

    def trace(sql: str) -> None:
        seen.append(sql)
        if len(seen) > statement + 1:  # the first is the end of this very transaction
            os.kill(os.getpid(), signal.SIGKILL)

    with jobs._database.reading() as connection:
        connection.set_trace_callback(trace)


def forker(path: Path, _: int) -> None:
    """Let a child go on with a store that was in use, while the parent closes it."""
    jobs = SQLiteJobs(path)
    ids = [task.task_id for task in jobs.tasks("job")]
    jobs.record_results("job", [TaskResult("job", ids[0], True)])
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        jobs.record_results("job", [TaskResult("job", ids[1], True)])
        os.read(told, 1)  # until the parent has let go of the file
        jobs.record_results("job", [TaskResult("job", ids[2], True)])
        os._exit(0)
    jobs.record_results("job", [TaskResult("job", ids[3], True)])
    jobs.close()
    # Somebody else is the last to leave: whoever is, folds the log in and deletes it.
    with SQLiteJobs(path) as another:
        another.record_results("job", [TaskResult("job", ids[4], True)])
    os.write(tell, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(SQLiteJobs(path).find_by_id("job").state.completed_tasks)  # type: ignore[union-attr]


def busy_forker(path: Path, _: int) -> None:
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
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.set()
    for thread in threads:
        thread.join()
    print(jobs.find_by_id("job").state.completed_tasks)  # type: ignore[union-attr]


def forker_in_a_transaction(path: Path, _: int) -> None:
    """Fork while another thread is in a transaction that does not end."""
    jobs, within, stop = SQLiteJobs(path, busy_seconds=0.05), Event(), Event()

    def stay() -> None:
        with jobs._database.writing():
            within.set()
            stop.wait(PATIENCE_SECONDS)

    thread = Thread(target=stay, daemon=True)
    thread.start()
    within.wait(PATIENCE_SECONDS)
    child = os.fork()
    if child == 0:
        without_rights(path, 0, jobs)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    stop.set()
    thread.join()
    jobs.increment_completed_tasks("job")


def short_of_disk(path: Path, _: int) -> None:
    """Files may not grow beyond what they are, and then may again."""
    jobs = SQLiteJobs(path)
    more = [ExportTask.of("job", f"https://files.example/more/{n}", "k") for n in range(5_000)]
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    for _ in range(2):
        try:
            jobs.add_tasks("job", more)
        except StoreUnavailable as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    jobs.add_tasks("job", more)
    print(len(jobs.tasks("job", limit=10_000)))


def without_rights(path: Path, _: int, jobs: SQLiteJobs | None = None) -> None:
    try:
        (jobs or SQLiteJobs(path)).note_progress("job")
    except (ConfigError, StoreUnavailable) as error:
        print(error)


# -- the tests


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
    command = [sys.executable, __file__, role.__name__, str(path), str(number)]
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


BOOKS = """
SELECT completed_tasks, failed_tasks, total_tasks - remaining_tasks,
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'COMPLETED'),
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'FAILED')
FROM jobs
"""


def _assert_books_agree(jobs: SQLiteJobs) -> None:
    """I-JB-1, I-JB-2: in one look, for others may be writing."""
    with jobs._database.reading() as connection:
        completed, failed, processed, *rows = connection.execute(BOOKS).fetchone()
    assert [completed, failed] == rows
    assert processed == completed + failed


def _assert_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_four_report_the_same_tasks_two_are_killed_and_one_decides(tmp_path: Path) -> None:
    """R004-051, R004-069, R004-105; JB-01, JB-02, JB-06, LO-01, I-JB-1, I-JB-3, I-JB-5."""
    random = Random(4)
    path = tmp_path / "jobs.db"
    with stored(path) as jobs:
        four = [begin(reporter, path, number) for number in range(4)]
        try:
            killed = _kill_two(jobs, four, random)
            said = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in four]
        finally:
            for process in four:
                process.kill()
        assert [process.returncode for process in four if process not in killed] == [0, 0]
        assert job_of(jobs).state.completed_tasks == TASKS
        _assert_books_agree(jobs)
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
        _assert_books_agree(jobs)
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
    [deaths] = said_by(crasher, path)
    assert int(deaths) >= 5  # BEGIN, SELECT, two rows, the job, COMMIT
    jobs = SQLiteJobs(path)
    assert (job_of(jobs).state.completed_tasks, job_of(jobs).state.failed_tasks) == (1, 1)
    _assert_sound(path)


def test_a_forked_child_and_its_parent_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """LO-02."""
    path = tmp_path / "jobs.db"
    stored(path, 5).close()
    assert said_by(forker, path) == ["5"]
    _assert_sound(path)


def test_forks_beside_busy_threads_are_safe(tmp_path: Path) -> None:
    """LO-02: no lock is inherited locked, no half transaction is taken along."""
    path = tmp_path / "jobs.db"
    stored(path, 0).close()
    assert said_by(busy_forker, path) == [f"{FORKS}"]
    _assert_books_agree(SQLiteJobs(path))
    _assert_sound(path)


def test_a_child_forked_amid_a_transaction_is_told_so(tmp_path: Path) -> None:
    """LO-02: what it inherited of SQLite's locks is not to be trusted."""
    path = tmp_path / "jobs.db"
    stored(path, 0).close()
    [error] = said_by(forker_in_a_transaction, path)
    assert "forked while it was in use" in error
    assert job_of(SQLiteJobs(path)).state.completed_tasks == 1


def test_a_full_disk_is_unavailable_and_leaves_the_store_sound(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with SQLiteJobs(path) as jobs:
        jobs.save(ExportJob.create("job", "export", "user"))
    first, again, stored_then = said_by(short_of_disk, path)
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
        [error] = said_by(without_rights, path, preexec_fn=without_privileges)
    finally:
        folder.chmod(0o700)
    assert str(path) in error
    assert ("rights" if existing else "Permission denied") in error


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
