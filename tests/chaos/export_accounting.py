"""Compare the store, the target, the logs and the servers' totals, and list broken promises."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.export_roles import TOKEN_CANARY, ExportWorkspace, JobOrder
from chaos.export_server import WaitingToken, make_content
from chaos.rounds import Promises
from holdfast.exports.building import open_jobs
from holdfast.exports.file_names import OWN_FOLDER
from holdfast.exports.model import ExportJob, JobStatus, TaskStatus

# One statement, so that counters and rows are from the same moment.
_ROWS = """
SELECT job_id, j.status, sealed, total_tasks, completed_tasks, failed_tasks, remaining_tasks,
       coalesce(sum(t.status = 'COMPLETED'), 0), coalesce(sum(t.status = 'FAILED'), 0)
FROM jobs j LEFT JOIN tasks t USING (job_no) GROUP BY job_no
"""
_MOVES = {
    "PROCESSING": {"PROCESSING", "DOWNLOADING", "COMPLETED", "FAILED"},
    "DOWNLOADING": {"DOWNLOADING", "COMPLETED", "FAILED"},
    "COMPLETED": {"COMPLETED"},
    "FAILED": {"FAILED"},
}


def iterate_published(target: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each published file below the target."""
    for path in target.rglob("*"):
        key = path.relative_to(target)
        if key.parts[0] != OWN_FOLDER and path.is_file():
            yield str(key), path


def is_correct(key: str, path: Path, orders: Sequence[JobOrder]) -> bool:
    """Return whether the file was ordered, is complete and has the right bytes."""
    job_id, _, name = key.partition("/")
    size = next((order.files.get(name) for order in orders if order.job_id == job_id), None)
    return size is not None and path.read_bytes() == make_content(name, size)


class ExportObserver:
    """Checks promises that hold at every moment, while the round goes on."""

    def __init__(self, workspace: ExportWorkspace, orders: Sequence[JobOrder]) -> None:
        self._store, self._target, self._orders = workspace.store, workspace.target, orders
        self._seen: dict[str, str] = {}
        self._totals: dict[str, int] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self.observations = 0

    def observe(self) -> None:
        """Check files and jobs once."""
        if self._store.exists():
            self.observations += 1
            self._check_files()
            self._check_jobs()

    def _check_files(self) -> None:
        """Assert that no partial file is visible. Each version is read once (I-JB-12)."""
        for key, path in iterate_published(self._target):
            stat = path.stat()
            if self._files.get(key) != (version := (stat.st_ino, stat.st_mtime_ns)):
                assert is_correct(key, path, self._orders), f"{key}: partial or wrong"
                self._files[key] = version

    def _check_jobs(self) -> None:
        """Assert that counters, totals and statuses are consistent (I-JB-1, I-JB-2, I-JB-4)."""
        for row in self._read(_ROWS):
            self._check_job(*row)

    def has_pending_callback(self) -> bool:
        """Return whether a callback to Step Functions is pending."""
        return bool(self._read("SELECT 1 FROM jobs WHERE callback_state = 'pending'"))

    def _read(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self._store}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute(statement).fetchall()
            except sqlite3.OperationalError:  # its tables are being created
                return []

    def _check_job(
        self,
        job_id: str,
        status: str,
        sealed: int,
        total: int,
        completed: int,
        failed: int,
        remaining: int,
        rows_completed: int,
        rows_failed: int,
    ) -> None:
        assert (completed, failed) == (rows_completed, rows_failed), job_id
        assert remaining == total - completed - failed, job_id
        assert sealed or status != "COMPLETED", job_id
        before = self._seen.get(job_id, "PROCESSING")
        assert status in _MOVES[before], f"{job_id} was {before} and is {status}"
        self._seen[job_id] = status
        if sealed:
            assert self._totals.setdefault(job_id, total) == total, job_id


@dataclass
class ExportAccounting(Promises):
    """The final state of one round. Each check lists what is wrong."""

    workspace: ExportWorkspace
    orders: list[JobOrder]
    jobs: dict[str, ExportJob] = field(default_factory=dict)
    # status by job and file name
    rows: dict[str, dict[str, TaskStatus]] = field(default_factory=dict)

    @property
    def tokens(self) -> dict[str, WaitingToken]:
        """Return the executions that were started, by their tokens."""
        return self.workspace.servers.tokens

    def read(self) -> "ExportAccounting":
        """Read the store."""
        with open_jobs(self.workspace.store) as jobs:
            for order in self.orders:
                if (job := jobs.find_by_id(order.job_id)) is not None:
                    self.jobs[order.job_id] = job
                    tasks = jobs.tasks(order.job_id)
                    self.rows[order.job_id] = {task.key: task.status for task in tasks}
        return self

    def is_finished(self) -> bool:
        """Return whether every job is terminal and no execution waits (I-JB-5)."""
        self.read()
        ended = [job for job in self.jobs.values() if job.terminal]
        return len(ended) == len(self.orders) and not self.list_open_tokens()

    def list_open_tokens(self) -> list[str]:
        """Return the tokens that still wait for a callback."""
        return [name for name, token in self.tokens.items() if token.state == "OPEN"]

    def has_timed_out(self, order: JobOrder) -> bool:
        """Return whether an execution of this job really timed out, because no service sent
        heartbeats.
        """
        return any(self.tokens[name].state == "TIMED_OUT" for name in order.tokens)

    # -- promises

    def find_unfinished(self) -> Iterator[str]:
        """Yield tokens that wait, and jobs that have no outcome (I-JB-5)."""
        yield from self.list_open_tokens()
        jobs = (self.jobs[order.job_id] for order in self.orders)
        yield from (job.job_id for job in jobs if not job.terminal)

    def find_miscounted(self) -> Iterator[str]:
        """Yield jobs whose counters differ from their rows, or whose tasks are incomplete
        (I-JB-1, I-JB-2).
        """
        for order in self.orders:
            job, rows = self.jobs[order.job_id], self.rows[order.job_id]
            count = Counter(rows.values())
            state = job.state
            counters = (state.completed_tasks, state.failed_tasks)
            if counters != (count[TaskStatus.COMPLETED], count[TaskStatus.FAILED]):
                yield f"{order.job_id}: {state}, and the rows say {count}"
            left = 0 if not self.has_timed_out(order) else job.remaining_tasks
            if job.sealed and (set(rows) != set(order.files) or job.remaining_tasks != left):
                yield f"{order.job_id}: {len(rows)} rows, {job.remaining_tasks} remain"

    def find_wrong_ends(self) -> Iterator[str]:
        """Yield jobs that failed although every file was available and no execution timed out
        (I-JB-3, I-JB-4).
        """
        for order in self.orders:
            job, rows = self.jobs[order.job_id], self.rows[order.job_id]
            if self.has_timed_out(order):
                continue
            failed = {name for name, status in rows.items() if status is TaskStatus.FAILED}
            if failed != order.missing_files:
                yield f"{order.job_id}: failed are {failed}, missing are {order.missing_files}"
            expected = JobStatus.FAILED if order.missing_files else JobStatus.COMPLETED
            expected_code = "JobCompletedWithFailures" if order.missing_files else None
            actual_code = job.error.code if job.error else None
            if (job.status, actual_code) != (expected, expected_code):
                yield f"{order.job_id}: {job.status} ({actual_code}), and should be {expected}"

    def find_wrong_callbacks(self) -> Iterator[str]:
        """Yield tokens that did not accept exactly one callback, with the job's outcome.

        An execution may also receive that another one superseded it, but not all of them may
        (I-JB-3).
        """
        for order in self.orders:
            job = self.jobs[order.job_id]
            for number, name in enumerate(order.tokens, 1):
                token = self.tokens[name]
                taken = [answer for answer in token.answers if answer[2]]
                if len(taken) != (token.state == "CLOSED"):
                    yield f"{order.job_id}/{number}: {token.state}, taken {taken}"
                for action, error, _ in taken:
                    if error == "Superseded":
                        continue
                    success = action == "SendTaskSuccess"
                    if success != (job.status is JobStatus.COMPLETED):
                        yield f"{order.job_id}/{number}: {action} {error}, but {job.status}"

    def find_orphaned(self) -> Iterator[str]:
        """Yield jobs all of whose executions were superseded.

        A superseded execution must have a successor that received the job's outcome (I-JB-3).
        """
        for order in self.orders:
            answers = [answer for name in order.tokens for answer in self.tokens[name].answers]
            errors = [error for _, error, taken in answers if taken]
            if errors and set(errors) == {"Superseded"} and not self.has_timed_out(order):
                yield f"{order.job_id}: all {len(errors)} executions were superseded"

    def find_contradictions(self) -> Iterator[str]:
        """Yield jobs for which different outcomes were sent, accepted or not (I-JB-3)."""
        for order in self.orders:
            tried = {
                (action, error)
                for name in order.tokens
                for action, error, _ in self.tokens[name].answers
                if error != "Superseded"
            }
            if len(tried) > 1 and not self.has_timed_out(order):
                yield f"{order.job_id}: {sorted(tried)}"

    def find_wrong_timeouts(self) -> Iterator[str]:
        """Yield executions that timed out although the job did not fail.

        This is allowed only if the response to a callback was lost, or the job sent its
        callback to another token (ADR 9).
        """
        for order in self.orders:
            job = self.jobs[order.job_id]
            for name in order.tokens:
                token = self.tokens[name]
                if token.state != "TIMED_OUT" or job.status is JobStatus.FAILED:
                    continue
                others = [
                    self.tokens[other_name].state
                    for other_name in order.tokens
                    if other_name != name
                ]
                if not (job.callback.attempts > 1 or "CLOSED" in others):
                    yield f"{order.job_id}: timed out, but {job.status} was surely delivered"

    def find_bad_files(self) -> Iterator[str]:
        """Yield visible files that are incomplete or wrong, and completed tasks without a file
        (I-JB-12).
        """
        paths_by_key = dict(iterate_published(self.workspace.target))
        for key, path in paths_by_key.items():
            if not is_correct(key, path, self.orders):
                yield f"{key}: wrong, or not ordered"
        for job_id, rows in self.rows.items():
            completed = {
                f"{job_id}/{name}"
                for name, status in rows.items()
                if status is TaskStatus.COMPLETED
            }
            yield from (f"{key}: counted, but missing" for key in completed - set(paths_by_key))

    def find_logged_tokens(self) -> Iterator[str]:
        """Yield log lines that show a token, and tracebacks (I-JB-13)."""
        for log in self.workspace.logs.iterdir():
            for line in log.read_text(errors="replace").splitlines():
                if TOKEN_CANARY in line:
                    yield f"{log.name}: {line.replace(TOKEN_CANARY, '…')}"
                if line.startswith("Traceback"):
                    yield f"{log.name}: {line}"

    def count_repeated(self) -> int:
        """Return how many more tasks were counted than rows ended."""
        ends = (TaskStatus.COMPLETED, TaskStatus.FAILED)
        rows = sum(status in ends for rows in self.rows.values() for status in rows.values())
        return sum(job.state.processed_tasks for job in self.jobs.values()) - rows

    def format_summary(self) -> str:
        """Return the totals in one line."""
        files = sum(len(order.files) for order in self.orders)
        servers = self.workspace.servers
        states = Counter(token.state for token in self.tokens.values())
        answers = [answer for token in self.tokens.values() for answer in token.answers]
        superseded = sum(error == "Superseded" and taken for _, error, taken in answers)
        return (
            f"{len(self.orders)} jobs, {files} files, {servers.fetched.total()} sent, "
            f"counted twice {self.count_repeated()}, {len(self.tokens)} executions: "
            f"{states['CLOSED']} answered ({superseded} superseded), "
            f"{states['TIMED_OUT']} timed out, {states['OPEN']} open; "
            f"{len(answers)} answers tried, {servers.faults} network faults"
        )
