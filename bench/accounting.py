"""accounting: count results of tasks in SQLite so that a power cut loses none of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from bench.report import Bar, Result, at_most
from bench.session import Figures, Session, in_fresh_process, repeat
from holdfast.exports.model import ExportJob, ExportTask, JobStatus, TaskResult
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.sqlite_jobs import SQLiteJobs

SIZES = (100, 1_000, 10_000, 50_000)
EVEN = 50  # divides every size, so that no job ends with a small batch and a sync for it
FULL = 99  # the number that the dispatcher writes at once
STORE = "jobs.db"
WARM = 10  # batches that are not counted


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs of a size, with results in batches of a size."""

    tasks: int  # of a job
    batch: int
    shuffled: bool = False

    def __str__(self) -> str:
        how = "one by one" if self.batch == 1 else f"{self.batch} at once"
        order = ", in random order" if self.shuffled else ""
        return f"jobs of {self.tasks:,} tasks, {how}{order}"


ONE_BY_ONE, AT_ONCE = Load(1_000, 1), Load(1_000, FULL)
BY_SIZE = [Load(tasks, EVEN) for tasks in SIZES]
SHUFFLED = Load(SIZES[-1], EVEN, shuffled=True)


def run_accounting(session: Session) -> Result:
    """Count results one by one and in batches, in jobs of each size."""
    title = "Results of export tasks, counted durably"
    loads = [ONE_BY_ONE, AT_ONCE, *BY_SIZE, SHUFFLED]
    measured = session.measure(
        title, {str(load): partial(_measure, session, load) for load in loads}
    )
    small, large = str(BY_SIZE[0]), str(BY_SIZE[-1])
    promise = f"a result of {SIZES[-1]:,} tasks costs at most 1.3 × one of {SIZES[0]:,}"
    rate = measured.median(str(AT_ONCE))
    return Result(
        title,
        ("", "results/s"),
        measured.make_rows(("rate", "{:,.0f}")),
        [
            Bar("at least 2,000 results/s, as written", rate, 2_000, "/s"),
            at_most(promise, measured.ratio(small, large), 1.3, "×"),
        ],
        measured,
        f"Every call returns when its results are on the disk. The dispatcher writes up to "
        f"{FULL} at once; one by one is the worst case.",
    )


def _measure(session: Session, load: Load) -> Figures:
    results = session.size(20_000, 2_000)
    with session.arena.room(str(load)) as path:
        in_fresh_process(list_jobs, load, path, results)
        session.arena.settle(path)
        return in_fresh_process(measure_results, load, path, results, session.max_seconds)


def list_jobs(load: Load, path: Path, results: int) -> None:
    """Create as many jobs as the results need."""
    with SQLiteJobs(path / STORE, durability="process") as jobs:
        for number in range(-(-(results + WARM * load.batch) // load.tasks)):
            create_job(jobs, f"job-{number:06}", load.tasks)


def measure_results(load: Load, path: Path, results: int, max_seconds: float) -> Figures:
    """Count up to `results` results within the time."""
    with SQLiteJobs(path / STORE, durability="power") as jobs:
        batches = list(_make_batches(jobs, load))[: WARM + results // load.batch]

        def record(number: int) -> None:
            assert jobs.record_results(*batches[number]) == load.batch

        for number in range(WARM):
            record(number)
        recorded, seconds = repeat(
            lambda number: record(WARM + number), len(batches) - WARM, max_seconds
        )
    return {"rate": recorded * load.batch / seconds}


def _make_batches(
    jobs: JobStateRepository, load: Load
) -> Iterator[tuple[str, Sequence[TaskResult]]]:
    """Yield batches in the order of the tasks' ids, as the dispatcher does, or shuffled."""
    for job in jobs.find_by_status(JobStatus.DOWNLOADING):
        results_of_job = make_results(jobs, job.job_id)
        if load.shuffled:
            Random(1).shuffle(results_of_job)
        for at in range(0, len(results_of_job) - load.batch + 1, load.batch):
            yield job.job_id, results_of_job[at : at + load.batch]


def create_job(jobs: JobStateRepository, job_id: str, count: int) -> None:
    """Create a job with `count` tasks."""
    jobs.save(ExportJob.create(job_id, "export", "user", task_token="token" * 100, now=1.0))
    jobs.add_tasks(
        job_id,
        (
            ExportTask.create(
                job_id,
                f"https://files.example.com/exports/2026/{job_id}/{number:07}",
                f"exports/{job_id}/{number:07}.parquet",
                f"sha256:{number:064x}",
                1_000_000,
            )
            for number in range(count)
        ),
    )
    jobs.set_total_tasks(job_id, count)
    jobs.update_job_status(job_id, JobStatus.DOWNLOADING)


def make_results(jobs: JobStateRepository, job_id: str) -> list[TaskResult]:
    """Return a success for each task of a job, in the order of the tasks' ids."""
    listed = jobs.tasks(job_id, limit=max(SIZES))
    return [TaskResult(job_id, task.task_id, True, 1_000_000) for task in listed]
