"""DynamoDBJobs: the cost of a write, and what happens when its response is lost."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.errors import JobNotFound, StoreUnavailable
from holdfast.exports.model import CallbackState, ExportTask, JobStatus
from support.dynamodb.faults import (
    InterleavingClient,
    RecordingClient,
    RepeatingClient,
    ResponseLosingClient,
)
from support.dynamodb.jobs import (
    PREPARATIONS,
    WRITES,
    Case,
    count_rows,
    decide_job,
    get_job,
    make_job,
    make_result,
    make_tasks,
    read_row,
    start_job,
)
from support.dynamodb.service import clear_tables
from support.exports.dynamodb_store import Store

# -- writes


@pytest.mark.requirement("R004-197")
def test_no_call_names_an_attribute_without_an_alias(store: Store) -> None:
    """`status` and other names are reserved words (JB-24)."""
    recorder = RecordingClient(store.client)
    jobs = store.open(recorder, keep_seconds=60.0)
    for _, write in WRITES.items():
        PREPARATIONS[write.prepare](jobs, store.clock)
        write.call(jobs)
        clear_tables(store.client)
    jobs.find_by_status(JobStatus.FAILED)
    texts = list(_find_expressions(recorder.calls))
    assert len(texts) > 40
    functions = {"attribute_exists", "attribute_not_exists", "SET", "ADD", "REMOVE"}
    functions |= {"NOT", "contains", "if_not_exists", "list_append"}
    for text in texts:
        words = set(re.findall(r"(?<![#:\w])[A-Za-z]\w*", text))
        assert words <= functions | {"AND", "OR", "IN"}, text


def _find_expressions(arguments: Any) -> Iterator[str]:
    if isinstance(arguments, dict):
        for name, value in arguments.items():
            if name.endswith("Expression"):
                yield value
            else:
                yield from _find_expressions(value)
    elif isinstance(arguments, list | tuple):
        for element in arguments:
            yield from _find_expressions(element)


@pytest.mark.requirement("R004-015", "R004-049", "R004-067")
def test_results_are_counted_by_one_call_for_99_of_them(store: Store) -> None:
    """(JB-44)."""
    recorder = RecordingClient(store.client)
    jobs = store.open(recorder)
    tasks = start_job(jobs, store.clock, 120)
    recorder.calls.clear()
    store.clock.advance(1.0)
    assert jobs.record_results("job", [make_result(task) for task in tasks]) == 120
    first, second = recorder.list_calls("transact_write_items")
    assert [len(call["TransactItems"]) for call in (first, second)] == [100, 22]
    assert len(recorder.calls) == 4  # each after a read of the job
    counting = first["TransactItems"][-1]["Update"]
    assert re.search(
        r"SET .*#updatedAt = .* ADD #completedTasks :\w+, ", counting["UpdateExpression"]
    )


def test_results_that_were_counted_before_cost_one_more_call_not_one_each(store: Store) -> None:
    recorder = RecordingClient(store.client)
    jobs = store.open(recorder)
    tasks = start_job(jobs, store.clock, 20)
    jobs.record_results("job", [make_result(task) for task in tasks[::2]])
    recorder.calls.clear()
    assert jobs.record_results("job", [make_result(task) for task in tasks]) == 10
    assert [name for name, _ in recorder.calls] == ["get_item", *["transact_write_items"] * 2]
    recorder.calls.clear()
    jobs.add_tasks("job", [*tasks, *make_tasks("job", 30)])
    assert [name for name, _ in recorder.calls] == ["get_item", *["transact_write_items"] * 2]
    assert len(jobs.tasks("job")) == 30


def test_tasks_of_any_length_are_split_to_fit_a_transaction(store: Store) -> None:
    recorder = RecordingClient(store.client)
    jobs = store.open(recorder)
    jobs.save(make_job(store.clock))
    tasks = [
        ExportTask.create("job", "https://a.example/" + "x" * 300_000, f"{n}")
        for n in range(15)
    ]
    jobs.add_tasks("job", tasks)
    sent = recorder.list_calls("transact_write_items")
    assert [len(call["TransactItems"]) - 1 for call in sent] == [10, 5]
    assert len(jobs.tasks("job")) == 15


def test_an_outcome_is_not_claimed_from_counters_that_changed_meanwhile(store: Store) -> None:
    """(JB-02)."""
    tasks = start_job(store.jobs, store.clock, 1)
    store.jobs.set_total_tasks("job", 1)
    store.jobs.record_results("job", [make_result(tasks[0])])
    interleaving = InterleavingClient(
        store.client, lambda: store.jobs.increment_failed_tasks("job")
    )
    assert store.open(interleaving).claim_outcome("job") is None
    assert get_job(store.jobs).callback.state is CallbackState.NONE


def test_an_outcome_follows_from_failures_that_another_program_counted_meanwhile(
    store: Store,
) -> None:
    """Such a program writes no version, so the condition contains the counters (JB-02)."""
    tasks = start_job(store.jobs, store.clock, 1)
    store.jobs.set_total_tasks("job", 1)
    store.jobs.record_results("job", [make_result(tasks[0])])

    def add_failure() -> None:
        store.client.put_item(
            TableName="ExportJobs", Item={**read_row(store.client), "failedTasks": {"N": "1"}}
        )

    interleaving = InterleavingClient(store.client, add_failure)
    claimed = store.open(interleaving).claim_outcome("job")
    assert claimed is not None
    assert claimed == get_job(store.jobs)
    assert claimed.callback.status is JobStatus.FAILED


def test_no_call_for_an_unknown_job_leaves_a_row(store: Store) -> None:
    """An update must not create a row (JB-36)."""
    for name, write in WRITES.items():
        if name == "save":
            continue
        with pytest.raises(JobNotFound):
            write.call(store.jobs)
    assert (
        count_rows(store.client, "ExportJobs"),
        count_rows(store.client, "ExportTasks"),
    ) == (0, 0)


def _read_all_rows(client: Any) -> object:
    """Return all rows without the ids by which writes recognise themselves."""
    rows = [
        {name: value for name, value in row.items() if name != "writeId"}
        for table in ("ExportJobs", "ExportTasks")
        for row in client.scan(TableName=table)["Items"]
    ]
    return sorted(rows, key=lambda row: (row["jobId"]["S"], str(row.get("taskId"))))


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_response_is_lost_is_made_once_when_the_call_is_repeated(
    store: Store, name: str
) -> None:
    """The rows are the same as if nothing had been lost (JB-01, JB-09, I-JB-1)."""
    case = WRITES[name]
    losing = ResponseLosingClient(store.client)
    jobs = store.open(losing)
    PREPARATIONS[case.prepare](jobs, store.clock)
    losing.responses_to_lose = 1
    with pytest.raises(StoreUnavailable):
        case.call(jobs)
    assert losing.responses_to_lose == 0
    once = _read_all_rows(store.client)
    _repeat_call(case, jobs)
    assert _read_all_rows(store.client) == once
    clear_tables(store.client)
    PREPARATIONS[case.prepare](jobs, store.clock)
    case.call(jobs)
    assert _read_all_rows(store.client) == once


def _repeat_call(case: Case, jobs: DynamoDBJobs) -> None:
    if case.repeat_error is None:
        case.call(jobs)
        return
    with pytest.raises(case.repeat_error):
        case.call(jobs)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_botocore_makes_twice_is_not_refused_by_itself(
    store: Store, name: str
) -> None:
    """Otherwise the caller that claimed an outcome would conclude that another caller did."""
    case = WRITES[name]
    jobs = store.open(store.client)
    PREPARATIONS[case.prepare](jobs, store.clock)
    expected = case.call(jobs)
    once = _read_all_rows(store.client)
    clear_tables(store.client)
    PREPARATIONS[case.prepare](jobs, store.clock)
    assert case.call(store.open(RepeatingClient(store.client))) == expected
    assert _read_all_rows(store.client) == once


def test_an_attempt_that_recognises_itself_returns_the_state_before_it(store: Store) -> None:
    """Whether an earlier attempt may have been delivered decides how a late response is read;
    this attempt does not count (JB-09).
    """
    jobs = store.open(RepeatingClient(store.client))
    decide_job(jobs, store.clock)
    for in_doubt, attempts in ((False, 0), (True, 1)):
        job = jobs.begin_callback("job", again_after_seconds=5.0)
        assert job is not None
        assert (job.callback.in_doubt, job.callback.attempts) == (in_doubt, attempts)
        jobs.end_callback("job", in_doubt=True)
    assert get_job(jobs).callback.state is CallbackState.PENDING
