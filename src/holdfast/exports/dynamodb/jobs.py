"""DynamoDBJobs: the job store on Amazon DynamoDB.

    save               PutItem if there is none
    results, listing   TransactWriteItems on task rows and the job's row
    all other methods  one UpdateItem with a named condition

Only the outcome is read first and written later. Its condition contains the values that it was
derived from.

A response can be lost after the write was done. botocore then repeats the call, and the first
call makes DynamoDB refuse the second. Each write therefore leaves its own id in the row and
recognises it there. Otherwise the caller that claimed an outcome would conclude that another
caller did, and the outcome would not be delivered until the next reconciliation.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

from holdfast.errors import HoldfastError
from holdfast.exports import transitions
from holdfast.exports.dynamodb import items
from holdfast.exports.dynamodb.tables import (
    JOBS,
    STATUS_INDEX,
    TASKS,
    JobTables,
    format_tables_command,
)
from holdfast.exports.dynamodb.updates import CALLS, NEW_JOB, JobUpdate, build_update
from holdfast.exports.errors import JobExists, JobNotFound, StoreUnavailable
from holdfast.exports.model import (
    ExportJob,
    ExportTask,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.exports.ports import JobChange, JobStateRepository
from holdfast.exports.transitions import Rule
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.dynamodb.client import ConditionFailed, DynamoDBClient, WriteDone
from holdfast.store.dynamodb.expressions import RETURN_OLD
from holdfast.store.dynamodb.values import Attributes, decode, encode, measure_size

_log = logging.getLogger("holdfast")

Write = dict[str, Any]  # one entry of TransactItems

# A task that is listed for the first time. Listing it again leaves its row as it is.
NEW_TASK = "attribute_not_exists(#taskId)"
# The first result of a listed task. Any other result was counted already.
UNCOUNTED = "#status = :task_pending"

_MAX_TASKS_PER_TRANSACTION = 99  # a transaction takes 100 rows, one of which is the job
_MAX_BYTES_PER_TRANSACTION = 3 * 1024 * 1024  # of 4 MB, because expressions need some of it


class DynamoDBJobs(JobStateRepository):
    """Jobs in two DynamoDB tables, which `create_tables` creates.

    `keep_seconds` is how long the row of a finished job is kept, and a task's row from its
    result on; None keeps rows forever. It must be longer than any job takes, because a job that
    is listed again would otherwise miss tasks that it has counted and count them twice.
    """

    def __init__(
        self,
        *,
        jobs_table: str = JOBS,
        tasks_table: str = TASKS,
        client: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
    ) -> None:
        super().__init__(clock, keep_seconds)
        self._tables = JobTables(jobs_table, tasks_table)
        self._client = DynamoDBClient(
            client, clock, tables_command=format_tables_command(self._tables)
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def save(self, job: ExportJob) -> None:
        """Store a new job. Raises JobExists."""
        write_id = uuid4().hex
        row = {**items.row_from_job(job), **encode({"writeId": write_id})}
        result = self._client.write("put_item", **CALLS.put(self._tables.jobs, row, NEW_JOB))
        if isinstance(result, ConditionFailed) and result.row.get("writeId") != write_id:
            raise JobExists(f"job {transitions.shorten_name(job.job_id)} exists already")

    # -- reading

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the current job, or None if there is none."""
        try:
            return self._read(job_id)
        except JobNotFound:
            return None

    def _read(self, job_id: str) -> ExportJob:
        response = self._client.call(
            "get_item",
            TableName=self._tables.jobs,
            Key=items.build_job_key(job_id),
            ConsistentRead=True,  # with an old counter a job might never be finished
        )
        return items.require_job(job_id, decode(response.get("Item")))

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs with this status, found through the index and checked by
        their rows.
        """
        try:
            jobs = [items.job_from_row(row) for row in self._read_by_status(status)]
        except HoldfastError as error:
            _log.error("Failed to query jobs by status %s: %s", status, error)
            raise
        _log.debug("Found %d jobs with status %s", len(jobs), status)
        return jobs

    def _read_by_status(self, status: JobStatus) -> list[items.Row]:
        """Return the rows of all jobs with this status.

        The index finds the jobs but lags behind, so the status is checked in the rows
        themselves. A job that has just ended is not returned.
        """
        query = CALLS.query(
            self._tables.jobs,
            "#status = :status",
            {":status": status.value},
            IndexName=STATUS_INDEX,
        )
        # A job that moves while pages are read can be on two of them, and BatchGetItem refuses
        # a key that occurs twice.
        job_ids = dict.fromkeys(
            row["jobId"] for row in self._client.read_pages("query", **query)
        )
        keys = [items.build_job_key(job_id) for job_id in job_ids]
        rows = self._client.read_rows(self._tables.jobs, keys)
        return [row for row in rows if row.get("status") == status.value]

    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        """Return up to `limit` tasks in the order of their ids."""
        self._read(job_id)
        # DynamoDB applies the limit before the filter, so with a limit it would read in small
        # steps.
        options = {} if status else {"Limit": limit}
        query = CALLS.query(
            self._tables.tasks,
            "#jobId = :job AND #taskId > :after" if after else "#jobId = :job",
            {":job": job_id, ":after": after, ":status": status and status.value},
            "#status = :status" if status else "",
            ConsistentRead=True,
            **options,
        )
        pages = self._client.read_pages("query", **query)
        return [items.task_from_row(row) for row in islice(pages, limit)]

    # -- writing tasks together with the job

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        """Store the tasks that are missing, as pending."""
        added = 0
        for rows in _split_rows(items.row_from_task(job_id, task) for task in tasks):
            puts = {
                task_id: _build_task_put(self._tables.tasks, row)
                for task_id, row in rows.items()
            }
            added += self._transact(job_id, puts, transitions.accept_tasks)
        if not added:  # in this case no transaction checked the job
            _raise_if_refused(transitions.refuse_listing(self._read(job_id)))

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        """Count results and return how many were new.

        If a response is lost, only the returned number is too low. The next try does not count
        the tasks again, neither in the row nor in its return value.
        """
        first_results = {
            task_id: result
            for task_id, result in transitions.keep_first_results(job_id, results).items()
            if items.is_valid_task_id(task_id)
        }
        counted, ttl = 0, self._compute_ttl(self._clock.time())
        for group in _split_results(first_results):
            updates = {
                task_id: _build_result_update(self._tables.tasks, result, ttl)
                for task_id, result in group.items()
            }
            counted += self._count(job_id, updates, group)
        if not counted:
            _raise_if_refused(transitions.refuse_counting(self._read(job_id)))
        return counted

    def _count_unlisted(self, result: TaskResult) -> None:
        row = items.row_from_unlisted_result(result, self._compute_ttl(self._clock.time()))
        put = {result.task_id: _build_task_put(self._tables.tasks, row)}
        self._count(result.job_id, put, {result.task_id: result})

    def _count(
        self, job_id: str, writes: Mapping[str, Write], results: Mapping[str, TaskResult]
    ) -> int:
        def count_remaining(task_ids: Iterable[str]) -> tuple[int, int]:
            successes = [results[task_id].success for task_id in task_ids]
            return sum(successes), len(successes) - sum(successes)

        return self._transact(job_id, writes, transitions.count_results, count_remaining)

    def _transact(
        self,
        job_id: str,
        writes: Mapping[str, Write],
        rule: Rule,
        get_arguments: Callable[[Iterable[str]], tuple[Any, ...]] = lambda task_ids: (),
    ) -> int:
        """Write these task rows and apply the rule to the job; return how many were written.

        Either all of these writes happen or none. Tasks that another caller has written before
        are left out, and the others are sent again. Each round has fewer rows than the one
        before. There is almost always one round, because DynamoDB reports all refused rows at
        once. If the job refuses the write, the rule's refusal is raised.
        """
        remaining = dict(writes)
        while remaining:
            now, arguments = self._clock.time(), get_arguments(remaining)
            update = build_update(rule, now, *arguments)
            assert update is not None
            job_write = {"Update": self._build_job_update(job_id, update, now) | RETURN_OLD}
            result = self._client.transact([*remaining.values(), job_write])
            if isinstance(result, WriteDone):
                return len(remaining)
            *reasons, job_reason = result.reasons
            if job_reason is not None:
                self._explain(job_id, job_reason.row, rule, now, *arguments)
            reasons_by_name = zip(list(remaining), reasons, strict=True)
            remaining = {
                name: remaining[name] for name, reason in reasons_by_name if reason is None
            }
        return 0

    # -- writing the job alone

    def claim_outcome(self, job_id: str) -> ExportJob | None:
        """Decide the outcome once all results are in. Return the job, or None."""
        # This is called after every result and is nearly always too early. A read is cheaper
        # than a refused write, and it does not delay the callers that count.
        job = self._read(job_id)
        if not job.all_counted:
            return None
        change = self._change(job_id, transitions.claim_outcome, job.state.failed_tasks)
        return change.job_if_made

    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        """Attach the token of a new execution and return the job. Raises JobClosed.

        One write cannot choose between two statuses, so the job is read first. If it changes
        in between, StoreUnavailable is raised, and the caller tries again.
        """
        can_reopen = self._read(job_id).can_reopen
        return self._change(job_id, transitions.attach_token, token, can_reopen).job

    def _change(
        self, job_id: str, rule: Rule, *arguments: Any, return_before: bool = False
    ) -> JobChange:
        now, write_id = self._clock.time(), uuid4().hex
        update = build_update(rule, now, *arguments)
        if update is None:
            job = self._read(job_id)
            transitions.apply_rule(rule, job, now, None, *arguments)
            return JobChange(job, is_made=False)
        result = self._client.write(
            "update_item",
            ReturnValues="ALL_OLD" if return_before else "ALL_NEW",
            **self._build_job_update(job_id, update, now, write_id),
        )
        if isinstance(result, WriteDone):
            return JobChange(items.job_from_row(result.row), is_made=True)
        if result.row.get("writeId") == write_id:  # only the first response was lost
            restore = items.restore_before_attempt if return_before else items.job_from_row
            return JobChange(restore(result.row), is_made=True)
        job = self._explain(job_id, result.row, rule, now, *arguments)
        return JobChange(job, is_made=False)

    def _explain(
        self, job_id: str, row: items.Row, rule: Rule, now: float, *arguments: Any
    ) -> ExportJob:
        """Return the job of a row that a condition refused, because nothing is to be done.

        Raises JobNotFound, and the refusal that the rule returns.
        """
        job = items.require_job(job_id, row)
        if transitions.apply_rule(rule, job, now, None, *arguments) is not job:
            name = transitions.shorten_name(job_id)
            raise StoreUnavailable(
                f"DynamoDB refused a change of job {name}, although its row allows it"
            )
        return job

    def _build_job_update(
        self, job_id: str, update: JobUpdate, now: float, write_id: str | None = None
    ) -> dict[str, Any]:
        ttl = self._compute_ttl(now)
        sets = ["#updatedAt = :now"]
        if update.sets:
            sets.append(update.sets)
        if write_id is not None:
            sets.append("#writeId = :writeId")
        if update.ends:
            sets.append("#completedAt = :now, #callbackState = :sent")
        if update.ends and ttl is not None:
            sets.append("#ttl = :ttl")
        expression = f"SET {', '.join(sets)} {update.clauses}"
        times = {":now": items.format_time(now), ":ttl": ttl, ":writeId": write_id}
        return CALLS.update(
            self._tables.jobs,
            items.build_job_key(job_id),
            expression,
            update.condition,
            {**update.values, **times},
        )

    def _compute_ttl(self, now: float) -> int | None:
        """Return when a row that is finished now may expire."""
        return transitions.compute_ttl(now, self._keep_seconds)


def _raise_if_refused(refusal: HoldfastError | None) -> None:
    if refusal is not None:
        raise refusal


# -- writes of task rows, for transactions that also write the job's row
#
#    up to 99 tasks   each if it is not counted yet (or: not stored yet)
#    + the job        ADD of what these tasks contribute, if it is still open


def _build_result_update(table: str, result: TaskResult, ttl: int | None) -> Write:
    """Return the write that finishes a task."""
    row = items.changes_from_result(result, ttl)
    update = "SET " + ", ".join(f"#{name} = :new_{name}" for name in row)
    values = {f":new_{name}": value for name, value in row.items()}
    key = items.build_task_key(result.job_id, result.task_id)
    return {"Update": CALLS.update(table, key, update, UNCOUNTED, values)}


def _build_task_put(table: str, row: Attributes) -> Write:
    """Return the write that stores a new task."""
    return {"Put": CALLS.put(table, row, NEW_TASK)}


def _split_results(results: Mapping[str, TaskResult]) -> Iterator[dict[str, TaskResult]]:
    """Split the results into groups that fit into one transaction."""
    entries = list(results.items())
    for start in range(0, len(entries), _MAX_TASKS_PER_TRANSACTION):
        yield dict(entries[start : start + _MAX_TASKS_PER_TRANSACTION])


def _split_rows(rows: Iterable[Attributes]) -> Iterator[dict[str, Attributes]]:
    """Split the rows into groups that fit into one transaction, each row only once."""
    group: dict[str, Attributes] = {}
    size = 0
    for row in rows:
        row_size = measure_size(row)
        is_full = len(group) == _MAX_TASKS_PER_TRANSACTION
        if is_full or (group and size + row_size > _MAX_BYTES_PER_TRANSACTION):
            yield group
            group, size = {}, 0
        if (task_id := row["taskId"]["S"]) not in group:
            group[task_id] = row
            size += row_size
    if group:
        yield group
