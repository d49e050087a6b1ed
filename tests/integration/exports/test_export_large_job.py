"""A job of fifty thousand tasks: only a page is in memory, and no counted task runs again.

(JB-15, JB-16).
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from time import process_time

import pytest

from holdfast.exports.dispatcher import PAGE_SIZE
from holdfast.exports.model import ExportJob, ExportTask, JobStatus, TaskResult
from holdfast.exports.pool.worker import Assignment
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.sqlite_jobs import SQLiteJobs
from holdfast.exports.tracker import JobTracker
from support.cli.commands import Cli
from support.exports.inline_pool import fail, succeed
from support.exports.stage import make_runner
from support.sqlite.statements import assert_counters_match_rows

TASKS = 50_000
FAILING = 100  # every such task fails
JOB = "large"
# A page that is read, and the rest of the one before.
MAX_IN_MEMORY = 2 * PAGE_SIZE


def listing(request: JobRequest) -> Iterator[TaskSpec]:
    """Yield the files one by one, as from a manifest."""
    for n in range(TASKS):
        yield TaskSpec(url=f"https://files.example/{n}", key=f"{n:05}.bin")


class Process:
    """A process that works on the job until it loses the lease or is done."""

    def __init__(self, path: Path) -> None:
        self.jobs = SQLiteJobs(path, durability="process")
        self.lost = Event()
        self.done = 0
        self.max_tasks = self.max_results = 0

    def work(self, until: Callable[[ExportJob], bool] = lambda job: False) -> ExportJob:
        """Work on the job; lose the lease when `until` returns True."""

        def on_progress(job: ExportJob) -> None:
            if until(job):
                self.lost.set()

        with self.jobs:
            tracker = JobTracker(self.jobs, None)
            runner, _, pool = make_runner(self.jobs, tracker, do=self.do, listing=listing)
            pool.taken = deque(maxlen=1)  # type: ignore[assignment]  # not all of them
            request = JobRequest(JOB, "export", "user")
            job = runner.run(request, lost=self.lost, on_progress=on_progress)
            assert_counters_match_rows(self.jobs)
            return job

    def do(self, task: Assignment) -> TaskResult:
        """Do a task, and now and then measure the memory."""
        self.done += 1
        if self.done % (PAGE_SIZE * 4) == 1:
            self.measure_memory()
        return fail(task) if int(task.payload["s3Key"][:5]) % FAILING == 0 else succeed(task)

    def measure_memory(self) -> None:
        """Count the tasks and results in memory."""
        kinds = [type(item) for item in gc.get_objects()]
        self.max_tasks = max(self.max_tasks, kinds.count(ExportTask))
        self.max_results = max(self.max_results, kinds.count(TaskResult))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("large") / "jobs.db"


@pytest.fixture(scope="module")
def runs(store: Path) -> tuple[Process, ExportJob, Process, ExportJob]:
    """Run one process to the half and another to the end; return each with its job."""
    first, second = Process(store), Process(store)
    half = first.work(until=lambda job: job.state.processed_tasks >= TASKS // 2)
    complete = second.work()
    return first, half, second, complete


Runs = tuple[Process, ExportJob, Process, ExportJob]


def test_every_task_of_a_large_job_is_counted_once(runs: Runs) -> None:
    job = runs[3]
    assert (job.status, job.remaining_tasks) == (JobStatus.FAILED, 0)
    state = job.state
    failed = TASKS // FAILING
    assert (state.total_tasks, state.completed_tasks) == (TASKS, TASKS - failed)
    assert state.failed_tasks == failed


def test_a_resumed_job_does_only_tasks_that_were_not_counted(runs: Runs) -> None:
    first, half, second, _ = runs
    counted = half.state.processed_tasks
    assert TASKS // 2 <= counted < TASKS // 2 + PAGE_SIZE
    assert not half.terminal
    assert second.done == TASKS - counted
    # Only tasks that the first had done and not counted are done again, a page at most.
    assert first.done <= counted + 2 * PAGE_SIZE


def test_about_a_page_of_a_large_job_is_in_memory(runs: Runs) -> None:
    for process in (runs[0], runs[2]):
        assert 0 < process.max_tasks <= MAX_IN_MEMORY
        assert process.max_results <= MAX_IN_MEMORY


def test_showing_a_large_job_does_not_read_its_tasks(
    runs: Runs,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`list` and `show` take less than half of what it takes to read the tasks once."""
    cli = Cli(tmp_path, capsys, monkeypatch)
    cli("export", "list", "--jobs", str(store))  # imports are not measured
    began_at = process_time()
    [listed] = cli("export", "list", "--jobs", str(store), "--json").json
    shown = cli("export", "show", JOB, "--jobs", str(store), "--json").json
    seconds = process_time() - began_at
    assert (listed["total"], shown["failed"]) == (TASKS, TASKS // FAILING)
    assert seconds < _measure_reading_tasks(store) / 2


def _measure_reading_tasks(store: Path) -> float:
    began_at, after, count = process_time(), None, 0
    with SQLiteJobs(store) as jobs:
        while page := jobs.tasks(JOB, after=after):
            after, count = page[-1].task_id, count + len(page)
    assert count == TASKS
    return process_time() - began_at
