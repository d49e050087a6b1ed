"""accounting: count results of tasks in SQLite so that a power cut loses none of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread
from holdfast.exports.model import ExportJob, ExportTask, JobStatus, TaskResult
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.sqlite_jobs import SQLiteJobs

NAME = "accounting"
TITLE = "Results of export tasks, counted durably"
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


Measured = Mapping[Load, Sequence[float]]
ONE_BY_ONE, AT_ONCE = Load(1_000, 1), Load(1_000, FULL)
BY_SIZE = [Load(tasks, EVEN) for tasks in SIZES]
SHUFFLED = Load(SIZES[-1], EVEN, shuffled=True)


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    results = session.size(20_000, 2_000)
    measured: dict[Load, list[float]] = defaultdict(list)
    for load in session.interleaved(TITLE, [ONE_BY_ONE, AT_ONCE, *BY_SIZE, SHUFFLED]):
        with session.arena.room(str(load)) as path:
            in_fresh_process(list_jobs, load, path, results)
            session.arena.settle(path)
            rate = in_fresh_process(measure_results, load, path, results, session.max_seconds)
            measured[load].append(rate)
    return _result(measured)


def list_jobs(load: Load, path: Path, results: int) -> None:
    """Create as many jobs as the results need."""
    with SQLiteJobs(path / STORE, durability="process") as jobs:
        for number in range(-(-(results + WARM * load.batch) // load.tasks)):
            create_job(jobs, f"job-{number:06}", load.tasks)


def measure_results(load: Load, path: Path, results: int, max_seconds: float) -> float:
    """Count up to `results` results within the time, and return the rate."""
    with SQLiteJobs(path / STORE, durability="power") as jobs:
        batches = list(_make_batches(jobs, load))[: WARM + results // load.batch]
        for job_id, batch in batches[:WARM]:
            jobs.record_results(job_id, batch)
        began = at = perf_counter()
        count = 0
        for job_id, batch in batches[WARM:]:
            count += jobs.record_results(job_id, batch)
            at = perf_counter()
            if at - began > max_seconds:
                break
    return count / (at - began)


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


def _result(measured: Measured) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "results/s", "lowest to highest", "cost of a result"),
        rows=[_row(load, rates) for load, rates in measured.items()],
        bars=_bars(measured),
        notes=(
            "SQLite in WAL mode with synchronous=FULL: every call returns when its results "
            "and the job's counters are on the disk, in one transaction.",
            f"The dispatcher writes what came in meanwhile, up to {FULL} results at once; one "
            "by one is the worst case, a sync of the disk for each result.",
            "Results come in the order of the tasks' ids, unless a line says otherwise.",
        ),
    )


def _row(load: Load, rates: Sequence[float]) -> list[str]:
    rate = median(rates)
    return [str(load), f"{rate:,.0f}", spread(rates), f"{1e6 / rate:,.0f} µs"]


def _bars(measured: Measured) -> list[Bar]:
    small, large = measured[BY_SIZE[0]], measured[BY_SIZE[-1]]
    return [
        Bar("at least 2,000 results/s, as written", median(measured[AT_ONCE]), 2_000, "/s"),
        Bar(
            f"a result of {SIZES[-1]:,} tasks costs at most 1.3 × one of {SIZES[0]:,}",
            ratio(small, large),
            1.3,
            "×",
            at_least=False,
        ),
    ]
