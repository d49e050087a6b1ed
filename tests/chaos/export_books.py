"""Do the books balance? From the store, the target, the logs and the other side's word."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.export_cast import TOKEN_CANARY, Order, Place
from chaos.export_server import content
from holdfast.bootstrap.exports import open_jobs
from holdfast.jobs.file_names import OWN_FOLDER
from holdfast.jobs.model import ExportJob, JobStatus, TaskStatus

# One statement, so one moment: the counters and the rows as they are together.
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


def published(target: Path) -> Iterator[tuple[str, Path]]:
    """What is to be seen of exports: the name below the target, and the file."""
    for path in target.rglob("*"):
        key = path.relative_to(target)
        if key.parts[0] != OWN_FOLDER and path.is_file():
            yield str(key), path


def is_right(key: str, path: Path, orders: Sequence[Order]) -> bool:
    """Asked for, whole, and byte for byte what it should be."""
    job_id, _, name = key.partition("/")
    size = next((order.files.get(name) for order in orders if order.job_id == job_id), None)
    return size is not None and path.read_bytes() == content(name, size)


class Onlooker:
    """Looks on while all this goes on: some things hold at every moment."""

    def __init__(self, place: Place, orders: Sequence[Order]) -> None:
        self._store, self._target, self._orders = place.store, place.target, orders
        self._seen: dict[str, str] = {}
        self._totals: dict[str, int] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self.looks = 0

    def look(self) -> None:
        if self._store.exists():
            self.looks += 1
            self._look_at_files()
            self._look_at_jobs()

    def _look_at_files(self) -> None:
        """I-JB-12: no moment shows a part of one. Each version is read once."""
        for key, path in published(self._target):
            stat = path.stat()
            if self._files.get(key) != (version := (stat.st_ino, stat.st_mtime_ns)):
                assert is_right(key, path, self._orders), f"{key}: partial or wrong"
                self._files[key] = version

    def _look_at_jobs(self) -> None:
        """I-JB-1, I-JB-2, I-JB-4."""
        for row in self._read(_ROWS):
            self._judge(*row)

    def somebody_answers(self) -> bool:
        """Is an answer to Step Functions under way?"""
        return bool(self._read("SELECT 1 FROM jobs WHERE callback_state = 'pending'"))

    def _read(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self._store}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute(statement).fetchall()
            except sqlite3.OperationalError:  # its tables are being made
                return []

    def _judge(
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
class ExportBooks:
    """Each check lists what is wrong."""

    place: Place
    orders: list[Order]
    jobs: dict[str, ExportJob] = field(default_factory=dict)
    rows: dict[str, dict[str, TaskStatus]] = field(default_factory=dict)  # by job, by name
    tokens: dict[str, Any] = field(default_factory=dict)
    fetched: dict[str, int] = field(default_factory=dict)
    troubles: int = 0

    def read(self) -> "ExportBooks":
        told = self.place.world.books()
        self.tokens, self.fetched = told["tokens"], told["fetched"]
        self.troubles = told["troubles"]
        with open_jobs(self.place.store) as jobs:
            for order in self.orders:
                if (job := jobs.find_by_id(order.job_id)) is not None:
                    self.jobs[order.job_id] = job
                    tasks = jobs.tasks(order.job_id)
                    self.rows[order.job_id] = {task.key: task.status for task in tasks}
        return self

    def quiet(self) -> bool:
        """Every job is terminal, nobody waits. I-JB-5."""
        self.read()
        ended = [job for job in self.jobs.values() if job.terminal]
        return len(ended) == len(self.orders) and not self.still_open()

    def still_open(self) -> list[str]:
        return [i for i, token in self.tokens.items() if token["state"] == "OPEN"]

    def timed_out(self, order: Order) -> bool:
        """Did Step Functions really give up on it: nobody was there for too long?"""
        return any(self.tokens[one]["state"] == "TIMED_OUT" for one in order.tokens)

    # -- promises

    def miscounted(self) -> Iterator[str]:
        """I-JB-1, I-JB-2: counters are rows; all tasks are there; none is left."""
        for order in self.orders:
            job, rows = self.jobs[order.job_id], self.rows[order.job_id]
            count = Counter(rows.values())
            state = job.state
            said = (state.completed_tasks, state.failed_tasks)
            if said != (count[TaskStatus.COMPLETED], count[TaskStatus.FAILED]):
                yield f"{order.job_id}: {state}, and the rows say {count}"
            left = 0 if not self.timed_out(order) else job.remaining_tasks
            if job.sealed and (set(rows) != set(order.files) or job.remaining_tasks != left):
                yield f"{order.job_id}: {len(rows)} rows, {job.remaining_tasks} remain"

    def wrong_ends(self) -> Iterator[str]:
        """I-JB-3, I-JB-4: FAILED means that a file is not to be had, unless its execution
        had really timed out."""
        for order in self.orders:
            job, rows = self.jobs[order.job_id], self.rows[order.job_id]
            if self.timed_out(order):
                continue
            failed = {name for name, status in rows.items() if status is TaskStatus.FAILED}
            if failed != order.gone:
                yield f"{order.job_id}: failed are {failed}, gone are {order.gone}"
            wanted = JobStatus.FAILED if order.gone else JobStatus.COMPLETED
            code = "JobCompletedWithFailures" if order.gone else None
            found = job.error.code if job.error else None
            if (job.status, found) != (wanted, code):
                yield f"{order.job_id}: {job.status} ({found}), and should be {wanted}"

    def wrong_answers(self) -> Iterator[str]:
        """I-JB-3: one answer per token, that of the job; some execution may be told that
        another took over, but not all of them."""
        for order in self.orders:
            job = self.jobs[order.job_id]
            for number, name in enumerate(order.tokens, 1):
                token = self.tokens[name]
                taken = [tuple(answer) for answer in token["answers"] if answer[2]]
                if len(taken) != (token["state"] == "CLOSED"):
                    yield f"{order.job_id}/{number}: {token['state']}, taken {taken}"
                for action, error, _ in taken:
                    if error == "Superseded":
                        continue
                    success = action == "SendTaskSuccess"
                    if success != (job.status is JobStatus.COMPLETED):
                        yield f"{order.job_id}/{number}: told {action} {error}: {job.status}"

    def orphaned(self) -> Iterator[str]:
        """I-JB-3: who is superseded is so by another, which was told how the job ended."""
        for order in self.orders:
            answers = [a for name in order.tokens for a in self.tokens[name]["answers"]]
            told = [error for _, error, taken in answers if taken]
            if told and set(told) == {"Superseded"} and not self.timed_out(order):
                yield f"{order.job_id}: all {len(told)} executions were superseded"

    def contradictions(self) -> Iterator[str]:
        """I-JB-3: whatever was tried for one job, taken or not, says the same."""
        for order in self.orders:
            tried = {
                (action, error)
                for name in order.tokens
                for action, error, _ in self.tokens[name]["answers"]
                if error != "Superseded"
            }
            if len(tried) > 1 and not self.timed_out(order):
                yield f"{order.job_id}: {sorted(tried)}"

    def timed_out_wrongly(self) -> Iterator[str]:
        """ADR 9: the job failed; or it was in doubt, after an answer that nobody heard; or
        it answered to another token."""
        for order in self.orders:
            job = self.jobs[order.job_id]
            for name in order.tokens:
                token = self.tokens[name]
                if token["state"] != "TIMED_OUT" or job.status is JobStatus.FAILED:
                    continue
                others = [self.tokens[one]["state"] for one in order.tokens if one != name]
                if not (job.callback.attempts > 1 or "CLOSED" in others):
                    yield f"{order.job_id}: timed out, and {job.status} without doubt"

    def bad_files(self) -> Iterator[str]:
        """I-JB-12: what is visible is whole and right; what counts as done is visible."""
        seen = dict(published(self.place.target))
        for key, path in seen.items():
            if not is_right(key, path, self.orders):
                yield f"{key}: wrong, or not asked for"
        for job_id, rows in self.rows.items():
            done = {f"{job_id}/{k}" for k, s in rows.items() if s is TaskStatus.COMPLETED}
            yield from (f"{key}: counted, and not there" for key in done - set(seen))

    def told_tokens(self) -> Iterator[str]:
        """I-JB-13: no log shows a token; and none tells of a crash of ours."""
        for log in self.place.logs.iterdir():
            for line in log.read_text(errors="replace").splitlines():
                if TOKEN_CANARY in line:
                    yield f"{log.name}: {line.replace(TOKEN_CANARY, '…')}"
                if line.startswith("Traceback"):
                    yield f"{log.name}: {line}"

    def check(self) -> None:
        assert self.still_open() == []
        assert [o.job_id for o in self.orders if not self.jobs[o.job_id].terminal] == []
        for promise in (
            self.miscounted,
            self.wrong_ends,
            self.wrong_answers,
            self.orphaned,
            self.contradictions,
            self.timed_out_wrongly,
            self.bad_files,
            self.told_tokens,
        ):
            wrong = list(promise())
            assert not wrong, f"{promise.__name__}: {wrong}"

    def counted_twice(self) -> int:
        """More counted than there are rows that ended."""
        ends = (TaskStatus.COMPLETED, TaskStatus.FAILED)
        rows = sum(status in ends for rows in self.rows.values() for status in rows.values())
        return sum(job.state.processed_tasks for job in self.jobs.values()) - rows

    def summary(self) -> str:
        files = sum(len(order.files) for order in self.orders)
        sent = sum(self.fetched.values())
        states = Counter(token["state"] for token in self.tokens.values())
        answers = [tuple(a) for token in self.tokens.values() for a in token["answers"]]
        superseded = sum(error == "Superseded" and taken for _, error, taken in answers)
        return (
            f"{len(self.orders)} jobs, {files} files, {sent} sent whole, "
            f"counted twice {self.counted_twice()}, {len(self.tokens)} executions: "
            f"{states['CLOSED']} answered ({superseded} superseded), "
            f"{states['TIMED_OUT']} timed out, {states['OPEN']} open; "
            f"{len(answers)} answers tried, {self.troubles} faults of the network"
        )
