"""DynamoDBJobs: the cost of a write, and what happens when its response is lost."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.errors import JobNotFound, StoreUnavailable
from holdfast.exports.model import CallbackState, ExportTask, JobStatus
from holdfast.testing import ManualClock
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

# -- writes


@pytest.mark.requirement("R004-197")
def test_no_call_names_an_attribute_without_an_alias(client: Any, clock: ManualClock) -> None:
    """`status` and other names are reserved words (JB-24)."""
    recorder = RecordingClient(client)
    jobs = DynamoDBJobs(client=recorder, clock=clock, keep_seconds=60.0)
    for _, write in WRITES.items():
        PREPARATIONS[write.prepare](jobs, clock)
        write.call(jobs)
        clear_tables(client)
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
def test_results_are_counted_by_one_call_for_99_of_them(
    client: Any, clock: ManualClock
) -> None:
    """(JB-44)."""
    recorder = RecordingClient(client)
    jobs = DynamoDBJobs(client=recorder, clock=clock)
    tasks = start_job(jobs, clock, 120)
    recorder.calls.clear()
    assert jobs.record_results("job", [make_result(task) for task in tasks]) == 120
    first, second = recorder.list_calls("transact_write_items")
    assert [len(call["TransactItems"]) for call in (first, second)] == [100, 22]
    assert len(recorder.calls) == 2
    counting = first["TransactItems"][-1]["Update"]
    assert re.search(
        r"SET #updatedAt = .* ADD #completedTasks :\w+, ", counting["UpdateExpression"]
    )


def test_results_that_were_counted_before_cost_one_more_call_not_one_each(
    client: Any, clock: ManualClock
) -> None:
    recorder = RecordingClient(client)
    jobs = DynamoDBJobs(client=recorder, clock=clock)
    tasks = start_job(jobs, clock, 20)
    jobs.record_results("job", [make_result(task) for task in tasks[::2]])
    recorder.calls.clear()
    assert jobs.record_results("job", [make_result(task) for task in tasks]) == 10
    assert [name for name, _ in recorder.calls] == ["transact_write_items"] * 2
    recorder.calls.clear()
    jobs.add_tasks("job", [*tasks, *make_tasks("job", 30)])
    assert [name for name, _ in recorder.calls] == ["transact_write_items"] * 2
    assert len(jobs.tasks("job")) == 30


def test_tasks_of_any_length_are_split_to_fit_a_transaction(
    client: Any, clock: ManualClock
) -> None:
    recorder = RecordingClient(client)
    jobs = DynamoDBJobs(client=recorder, clock=clock)
    jobs.save(make_job(clock))
    tasks = [
        ExportTask.create("job", "https://a.example/" + "x" * 300_000, f"{n}")
        for n in range(15)
    ]
    jobs.add_tasks("job", tasks)
    sent = recorder.list_calls("transact_write_items")
    assert [len(call["TransactItems"]) - 1 for call in sent] == [10, 5]
    assert len(jobs.tasks("job")) == 15


def test_an_outcome_is_not_claimed_from_counters_that_changed_meanwhile(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    """This is the only call that reads a row first. Its condition contains what was read
    (JB-02).
    """
    tasks = start_job(jobs, clock, 1)
    jobs.set_total_tasks("job", 1)
    jobs.record_results("job", [make_result(tasks[0])])
    interleaving = InterleavingClient(client, lambda: jobs.increment_failed_tasks("job"))
    assert DynamoDBJobs(client=interleaving, clock=clock).claim_outcome("job") is None
    assert get_job(jobs).callback.state is CallbackState.NONE


def test_an_outcome_is_not_claimed_if_only_the_number_of_failures_changed(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    """The outcome follows from that number, so the condition contains it (JB-02)."""
    tasks = start_job(jobs, clock, 1)
    jobs.set_total_tasks("job", 1)
    jobs.record_results("job", [make_result(tasks[0])])

    def add_failure() -> None:
        client.put_item(
            TableName="ExportJobs", Item={**read_row(client), "failedTasks": {"N": "1"}}
        )

    interleaving = InterleavingClient(client, add_failure)
    assert DynamoDBJobs(client=interleaving, clock=clock).claim_outcome("job") is None
    assert get_job(jobs).callback.state is CallbackState.NONE


def test_no_call_for_an_unknown_job_leaves_a_row(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    """An update must not create a row (JB-36)."""
    for name, write in WRITES.items():
        if name == "save":
            continue
        with pytest.raises(JobNotFound):
            write.call(jobs)
    assert (count_rows(client, "ExportJobs"), count_rows(client, "ExportTasks")) == (0, 0)


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
    client: Any, clock: ManualClock, name: str
) -> None:
    """The rows are the same as if nothing had been lost (JB-01, JB-09, I-JB-1)."""
    case = WRITES[name]
    losing = ResponseLosingClient(client)
    jobs = DynamoDBJobs(client=losing, clock=clock)
    PREPARATIONS[case.prepare](jobs, clock)
    losing.responses_to_lose = 1
    with pytest.raises(StoreUnavailable):
        case.call(jobs)
    assert losing.responses_to_lose == 0
    once = _read_all_rows(client)
    _repeat_call(case, jobs)
    assert _read_all_rows(client) == once
    clear_tables(client)
    PREPARATIONS[case.prepare](jobs, clock)
    case.call(jobs)
    assert _read_all_rows(client) == once


def _repeat_call(case: Case, jobs: DynamoDBJobs) -> None:
    if case.repeat_error is None:
        case.call(jobs)
        return
    with pytest.raises(case.repeat_error):
        case.call(jobs)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_botocore_makes_twice_is_not_refused_by_itself(
    client: Any, clock: ManualClock, name: str
) -> None:
    """Otherwise the caller that claimed an outcome would conclude that another caller did."""
    case = WRITES[name]
    jobs = DynamoDBJobs(client=client, clock=clock)
    PREPARATIONS[case.prepare](jobs, clock)
    expected = case.call(jobs)
    once = _read_all_rows(client)
    clear_tables(client)
    PREPARATIONS[case.prepare](jobs, clock)
    assert case.call(DynamoDBJobs(client=RepeatingClient(client), clock=clock)) == expected
    assert _read_all_rows(client) == once


def test_an_attempt_that_recognises_itself_returns_the_state_before_it(
    client: Any, clock: ManualClock
) -> None:
    """Whether an earlier attempt may have been delivered decides how a late response is read;
    this attempt does not count (JB-09).
    """
    jobs = DynamoDBJobs(client=RepeatingClient(client), clock=clock)
    decide_job(jobs, clock)
    for in_doubt, attempts in ((False, 0), (True, 1)):
        job = jobs.begin_callback("job", again_after_seconds=5.0)
        assert job is not None
        assert (job.callback.in_doubt, job.callback.attempts) == (in_doubt, attempts)
        jobs.end_callback("job", in_doubt=True)
    assert get_job(jobs).callback.state is CallbackState.PENDING
