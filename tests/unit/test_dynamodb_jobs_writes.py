"""DynamoDBJobs: what a write costs, and what happens when its answer is lost."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from dynamodb_faults import Client, LosesAnswers, Meanwhile, TriesAgain
from dynamodb_kit import (
    PREPARED,
    WRITES,
    Case,
    decided,
    emptied,
    forget_all,
    found,
    new_job,
    result,
    rows_in,
    service,
    started,
    tasks_of,
)

from holdfast.adapters.aws.dynamodb import DynamoDBJobs
from holdfast.jobs.errors import JobNotFound, StoreUnavailable
from holdfast.jobs.model import CallbackState, ExportTask, JobStatus
from holdfast.testing import ManualClock


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with service() as client:
        yield client


@pytest.fixture
def client(moto: Any) -> Any:
    return emptied(moto)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def jobs(client: Any, clock: ManualClock) -> DynamoDBJobs:
    return DynamoDBJobs(client=client, clock=clock)


# -- how it writes


def test_a_whole_life_names_no_attribute_without_an_alias(
    client: Any, clock: ManualClock
) -> None:
    """R004-197; JB-24: `status`, and what else is reserved."""
    noted = Client(client)
    jobs = DynamoDBJobs(client=noted, clock=clock, keep_seconds=60.0)
    for _, write in WRITES.items():
        PREPARED[write.prepare](jobs, clock)
        write.call(jobs)
        forget_all(client)
    jobs.find_by_status(JobStatus.FAILED)
    texts = list(_expressions(noted.calls))
    assert len(texts) > 40
    functions = {"attribute_exists", "attribute_not_exists", "SET", "ADD", "REMOVE"}
    functions |= {"NOT", "contains", "if_not_exists", "list_append"}
    for text in texts:
        words = set(re.findall(r"(?<![#:\w])[A-Za-z]\w*", text))
        assert words <= functions | {"AND", "OR", "IN"}, text


def _expressions(said: Any) -> Iterator[str]:
    if isinstance(said, dict):
        for name, value in said.items():
            if name.endswith("Expression"):
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(said, list | tuple):
        for one in said:
            yield from _expressions(one)


def test_results_are_counted_by_one_call_for_99_of_them(
    client: Any, clock: ManualClock
) -> None:
    """R004-067; JB-44."""
    noted = Client(client)
    jobs = DynamoDBJobs(client=noted, clock=clock)
    tasks = started(jobs, clock, 120)
    noted.calls.clear()
    assert jobs.record_results("job", [result(task) for task in tasks]) == 120
    first, second = noted.made("transact_write_items")
    assert [len(call["TransactItems"]) for call in (first, second)] == [100, 22]
    assert len(noted.calls) == 2
    counting = first["TransactItems"][-1]["Update"]
    assert re.search(
        r"ADD #completedTasks :\w+, .*SET #updatedAt = ", counting["UpdateExpression"]
    )


def test_results_that_were_counted_before_cost_one_more_call_not_one_each(
    client: Any, clock: ManualClock
) -> None:
    noted = Client(client)
    jobs = DynamoDBJobs(client=noted, clock=clock)
    tasks = started(jobs, clock, 20)
    jobs.record_results("job", [result(task) for task in tasks[::2]])
    noted.calls.clear()
    assert jobs.record_results("job", [result(task) for task in tasks]) == 10
    assert [name for name, _ in noted.calls] == ["transact_write_items"] * 2
    noted.calls.clear()
    jobs.add_tasks("job", [*tasks, *tasks_of("job", 30)])
    assert [name for name, _ in noted.calls] == ["transact_write_items"] * 2
    assert len(jobs.tasks("job")) == 30


def test_tasks_of_any_length_are_sent_in_what_a_transaction_takes(
    client: Any, clock: ManualClock
) -> None:
    noted = Client(client)
    jobs = DynamoDBJobs(client=noted, clock=clock)
    jobs.save(new_job(clock))
    tasks = [
        ExportTask.of("job", "https://a.example/" + "x" * 300_000, f"{n}") for n in range(15)
    ]
    jobs.add_tasks("job", tasks)
    sent = noted.made("transact_write_items")
    assert [len(call["TransactItems"]) - 1 for call in sent] == [10, 5]
    assert len(jobs.tasks("job")) == 15


def test_an_outcome_is_not_claimed_for_what_was_read_before_somebody_counted(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    """JB-02: the one case in which a row is read first; its condition holds what was read."""
    tasks = started(jobs, clock, 1)
    jobs.set_total_tasks("job", 1)
    jobs.record_results("job", [result(tasks[0])])
    racing = Meanwhile(client, lambda: jobs.increment_failed_tasks("job"))
    assert DynamoDBJobs(client=racing, clock=clock).claim_outcome("job") is None
    assert found(jobs).callback.state is CallbackState.NONE


def test_nothing_that_is_asked_of_an_unknown_job_leaves_a_row(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    """JB-36."""
    for name, write in WRITES.items():
        if name == "save":
            continue
        with pytest.raises(JobNotFound):
            write.call(jobs)
    assert (rows_in(client, "ExportJobs"), rows_in(client, "ExportTasks")) == (0, 0)


def _left(client: Any) -> object:
    """All there is, but for the ids by which writes know themselves."""
    rows = [
        {name: value for name, value in row.items() if name != "writeId"}
        for table in ("ExportJobs", "ExportTasks")
        for row in client.scan(TableName=table)["Items"]
    ]
    return sorted(rows, key=lambda row: (row["jobId"]["S"], str(row.get("taskId"))))


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_answer_is_lost_is_made_once_when_it_is_asked_for_again(
    client: Any, clock: ManualClock, name: str
) -> None:
    """JB-01, JB-09, I-JB-1: the same rows as if nothing had been lost."""
    case = WRITES[name]
    losing = LosesAnswers(client)
    jobs = DynamoDBJobs(client=losing, clock=clock)
    PREPARED[case.prepare](jobs, clock)
    losing.to_lose = 1
    with pytest.raises(StoreUnavailable):
        case.call(jobs)
    assert losing.to_lose == 0
    once = _left(client)
    _again(case, jobs)
    assert _left(client) == once
    forget_all(client)
    PREPARED[case.prepare](jobs, clock)
    case.call(jobs)
    assert _left(client) == once


def _again(case: Case, jobs: DynamoDBJobs) -> None:
    if case.again is None:
        case.call(jobs)
        return
    with pytest.raises(case.again):
        case.call(jobs)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_botocore_makes_twice_is_not_refused_by_itself(
    client: Any, clock: ManualClock, name: str
) -> None:
    """Otherwise the one who claimed an outcome is told that somebody else did."""
    case = WRITES[name]
    plain = DynamoDBJobs(client=client, clock=clock)
    PREPARED[case.prepare](plain, clock)
    expected = case.call(plain)
    once = _left(client)
    forget_all(client)
    PREPARED[case.prepare](plain, clock)
    assert case.call(DynamoDBJobs(client=TriesAgain(client), clock=clock)) == expected
    assert _left(client) == once


def test_an_attempt_that_recognises_itself_knows_of_the_doubt_before_it(
    client: Any, clock: ManualClock
) -> None:
    """JB-09: doubt of earlier attempts decides how a late answer is read; our own is none."""
    jobs = DynamoDBJobs(client=TriesAgain(client), clock=clock)
    decided(jobs, clock)
    for doubt, attempts in ((False, 0), (True, 1)):
        job = jobs.begin_callback("job", again_after_seconds=5.0)
        assert job is not None
        assert (job.callback.in_doubt, job.callback.attempts) == (doubt, attempts)
        jobs.end_callback("job", in_doubt=True)
    assert found(jobs).callback.state is CallbackState.PENDING
