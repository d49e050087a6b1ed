"""Processes that share a job store; run as a script: `… ROLE PATH NUMBER`."""

import os
import resource
import signal
import sys
from pathlib import Path
from random import Random
from threading import Event, Thread

from holdfast.adapters.local.sqlite import SQLiteJobs
from holdfast.core.errors import ConfigError
from holdfast.jobs.errors import JobClosed, StoreUnavailable
from holdfast.jobs.model import ExportTask, JobError, TaskResult

PATIENCE_SECONDS = 60.0
FORKS = 8
STALLED = JobError("JobStalled", "no task was finished")

BOOKS = """
SELECT completed_tasks, failed_tasks, total_tasks - remaining_tasks,
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'COMPLETED'),
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'FAILED')
FROM jobs
"""


def assert_books_agree(jobs: SQLiteJobs) -> None:
    """I-JB-1, I-JB-2: in one look, for others may be writing."""
    with jobs._database.reading() as connection:
        completed, failed, processed, *rows = connection.execute(BOOKS).fetchone()
    assert [completed, failed] == rows
    assert processed == completed + failed


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
        assert_books_agree(jobs)
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


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
