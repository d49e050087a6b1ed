"""A job of fifty thousand tasks: a page of it in memory, half of it done again by nobody.

R004-066…069, JB-15, JB-16, I-JB-1, I-JB-2.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from time import process_time

import pytest
from cli_kit import Cli
from sqlite_jobs_roles import assert_books_agree

from holdfast.adapters.local.sqlite import SQLiteJobs
from holdfast.jobs.active_job import PAGE
from holdfast.jobs.dispatcher import TaskDispatcher
from holdfast.jobs.model import ExportJob, ExportTask, JobStatus, TaskResult
from holdfast.jobs.pool.pool import Assignment
from holdfast.jobs.request import JobRequest, TaskSpec
from holdfast.jobs.runner import JobRunner
from holdfast.jobs.tracker import JobTracker
from jobs.inline_pool import InlinePool, fail, succeed

TASKS = 50_000
FAILING = 100  # every such task fails
JOB = "large"
# A page that is read, and what is left of the one before; those that are done are results.
MOST_IN_MEMORY = 2 * PAGE


class Silent:
    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


def listing(request: JobRequest) -> Iterator[TaskSpec]:
    """As from a manifest: never all of it at once."""
    for n in range(TASKS):
        yield TaskSpec(url=f"https://files.example/{n}", key=f"{n:05}.bin")


class Process:
    """One that works on the job: from its message until it loses it, or is done."""

    def __init__(self, path: Path) -> None:
        self.jobs = SQLiteJobs(path, durability="process")
        self.lost = Event()
        self.done = 0
        self.most_tasks = self.most_results = 0

    def work(self, until: Callable[[ExportJob], bool] = lambda job: False) -> ExportJob:
        """Ends as a process does whose lease is lost, once `until` says so."""

        def moved(job: ExportJob) -> None:
            if until(job):
                self.lost.set()

        with self.jobs:
            tracker = JobTracker(self.jobs, None)
            dispatcher = TaskDispatcher(self.jobs, tracker, lambda task: {"key": task.key})
            pool = InlinePool(dispatcher, self.do)
            pool.taken = deque(maxlen=1)  # type: ignore[assignment]  # not all of them
            runner = JobRunner(self.jobs, tracker, dispatcher, Silent(), listing)
            request = JobRequest(JOB, "export", "user")
            job = runner.run(request, lost=self.lost, moved=moved)
            assert_books_agree(self.jobs)
            return job

    def do(self, task: Assignment) -> TaskResult:
        self.done += 1
        if self.done % (PAGE * 4) == 1:
            self.look_at_memory()
        return fail(task) if int(task.payload["key"][:5]) % FAILING == 0 else succeed(task)

    def look_at_memory(self) -> None:
        kinds = [type(one) for one in gc.get_objects()]
        self.most_tasks = max(self.most_tasks, kinds.count(ExportTask))
        self.most_results = max(self.most_results, kinds.count(TaskResult))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("large") / "jobs.db"


@pytest.fixture(scope="module")
def lives(store: Path) -> tuple[Process, ExportJob, Process, ExportJob]:
    """Somebody who came half way, and who came after: each with the job as they left it."""
    first, second = Process(store), Process(store)
    half = first.work(until=lambda job: job.state.processed_tasks >= TASKS // 2)
    whole = second.work()
    return first, half, second, whole


Lives = tuple[Process, ExportJob, Process, ExportJob]


def test_every_task_of_a_large_job_is_counted_once(lives: Lives) -> None:
    job = lives[3]
    assert (job.status, job.remaining_tasks) == (JobStatus.FAILED, 0)
    state = job.state
    failed = TASKS // FAILING
    assert (state.total_tasks, state.completed_tasks) == (TASKS, TASKS - failed)
    assert state.failed_tasks == failed


def test_who_resumes_does_what_was_not_counted_and_nothing_else(lives: Lives) -> None:
    first, half, second, _ = lives
    counted = half.state.processed_tasks
    assert TASKS // 2 <= counted < TASKS // 2 + PAGE
    assert not half.terminal
    assert second.done == TASKS - counted
    # What the first had done and not counted is done again: a page of it at most.
    assert first.done <= counted + 2 * PAGE


def test_about_a_page_of_a_large_job_is_in_memory(lives: Lives) -> None:
    for process in (lives[0], lives[2]):
        assert 0 < process.most_tasks <= MOST_IN_MEMORY
        assert process.most_results <= MOST_IN_MEMORY


def test_looking_at_a_large_job_does_not_read_its_tasks(
    lives: Lives,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`list` and `show` take less than half of what it takes to read the tasks once."""
    cli = Cli(tmp_path, capsys, monkeypatch)
    cli("export", "list", "--jobs", str(store))  # what is imported once is not counted
    began_at = process_time()
    [listed] = cli("export", "list", "--jobs", str(store), "--json").json
    shown = cli("export", "show", JOB, "--jobs", str(store), "--json").json
    looked_seconds = process_time() - began_at
    assert (listed["total"], shown["failed"]) == (TASKS, TASKS // FAILING)
    assert looked_seconds < _seconds_to_read_tasks(store) / 2


def _seconds_to_read_tasks(store: Path) -> float:
    began_at, after, count = process_time(), None, 0
    with SQLiteJobs(store) as jobs:
        while page := jobs.tasks(JOB, after=after):
            after, count = page[-1].task_id, count + len(page)
    assert count == TASKS
    return process_time() - began_at
