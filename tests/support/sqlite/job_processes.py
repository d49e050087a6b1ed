"""Roles of processes that share a job store; run as a script: `… ROLE PATH NUMBER`."""

import os
import resource
import signal
import sys
from pathlib import Path
from random import Random
from threading import Event, Thread

from holdfast.errors import ConfigError
from holdfast.exports.errors import JobClosed, StoreUnavailable
from holdfast.exports.model import ExportTask, JobError, TaskResult
from holdfast.exports.sqlite_jobs import SQLiteJobs

WAIT_TIMEOUT_SECONDS = 60.0
FORKS = 8
STALLED = JobError("JobStalled", "no task was finished")

COUNTERS_AND_ROWS = """
SELECT completed_tasks, failed_tasks, total_tasks - remaining_tasks,
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'COMPLETED'),
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'FAILED')
FROM jobs
"""


def assert_counters_match_rows(jobs: SQLiteJobs) -> None:
    """Compare counters and rows in one read, because other processes may be writing (I-JB-1,
    I-JB-2).
    """
    with jobs._database.begin_read() as connection:
        completed, failed, processed, *rows = connection.execute(COUNTERS_AND_ROWS).fetchone()
    assert [completed, failed] == rows
    assert processed == completed + failed


def report_results(path: Path, number: int) -> None:
    """Report every task in a random order, including those already reported; then claim the
    outcome.
    """
    random = Random(number)
    with SQLiteJobs(path, busy_seconds=WAIT_TIMEOUT_SECONDS) as jobs:
        results = [TaskResult("job", task.task_id, True, 1) for task in jobs.tasks("job")]
        random.shuffle(results)
        while results:
            size = random.randint(1, 4)
            batch, results = results[:size], results[size:]
            try:
                jobs.record_results("job", batch)
            except JobClosed:
                break  # another process reported the last task and decided first
        if jobs.claim_outcome("job"):
            print("won", flush=True)


def crash_at_each_statement(path: Path, number: int) -> None:
    """Die at each statement of a batch of results, one after the other, and print how often."""
    jobs = SQLiteJobs(path)
    completed, failed = (task.task_id for task in jobs.tasks("job", limit=2))
    batch = [TaskResult("job", completed, True), TaskResult("job", failed, False, 0, STALLED)]
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
        assert_counters_match_rows(jobs)
    print(deaths)


def _die_at(jobs: SQLiteJobs, statement: int) -> None:
    statements: list[str] = []

    def trace(sql: str) -> None:
        statements.append(sql)
        if len(statements) > statement + 1:  # the first one ends this transaction
            os.kill(os.getpid(), signal.SIGKILL)

    with jobs._database.begin_write() as connection:
        connection.set_trace_callback(trace)


def fork_with_open_store(path: Path, _: int) -> None:
    """Let a child use a store that was in use, while the parent closes it."""
    jobs = SQLiteJobs(path)
    ids = [task.task_id for task in jobs.tasks("job")]
    jobs.record_results("job", [TaskResult("job", ids[0], True)])
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        jobs.record_results("job", [TaskResult("job", ids[1], True)])
        os.read(read_end, 1)  # until the parent has closed the file
        jobs.record_results("job", [TaskResult("job", ids[2], True)])
        os._exit(0)
    jobs.record_results("job", [TaskResult("job", ids[3], True)])
    jobs.close()
    # Another connection is the last to close, so it checkpoints the log and deletes it.
    with SQLiteJobs(path) as another:
        another.record_results("job", [TaskResult("job", ids[4], True)])
    os.write(write_end, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(SQLiteJobs(path).find_by_id("job").state.completed_tasks)  # type: ignore[union-attr]


def fork_beside_writers(path: Path, _: int) -> None:
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


def fork_in_transaction(path: Path, _: int) -> None:
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
        write_without_permission(path, 0, jobs)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    stop.set()
    thread.join()
    jobs.increment_completed_tasks("job")


def fill_disk(path: Path, _: int) -> None:
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
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    jobs.add_tasks("job", more)
    print(len(jobs.tasks("job", limit=10_000)))


def write_without_permission(path: Path, _: int, jobs: SQLiteJobs | None = None) -> None:
    """Write to a store that cannot be written, and print the error."""
    try:
        (jobs or SQLiteJobs(path)).note_progress("job")
    except (ConfigError, StoreUnavailable) as error:
        print(error)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
