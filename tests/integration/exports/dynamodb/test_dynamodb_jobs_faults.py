"""DynamoDBJobs when DynamoDB is busy, unreachable or refuses a call; no error shows
a secret.
"""

import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ParamValidationError

from holdfast.errors import ConfigError, HoldfastError
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.errors import AlreadySealed, JobClosed, StoreUnavailable
from holdfast.exports.model import JobState, JobStatus, TaskToken
from holdfast.testing import ManualClock
from support.dynamodb.faults import FailingClient, make_cancellation, make_error
from support.dynamodb.jobs import (
    CANARY,
    PREPARATIONS,
    STALLED,
    WRITES,
    Write,
    decide_job,
    get_job,
    make_job,
    make_result,
    make_tasks,
    start_job,
)

# -- a store that is busy or closed

BUSY = {
    "conflict": make_cancellation("None", "TransactionConflict"),
    "throttled row": make_cancellation("ThrottlingError", "None"),
    "throughput of a row": make_cancellation("ProvisionedThroughputExceeded", "None"),
    "throughput": make_error("ProvisionedThroughputExceededException"),
    "throttled": make_error("ThrottlingException"),
    "in progress": make_error("TransactionInProgressException"),
    "internal error": make_error("InternalServerError", 500),
}


@pytest.mark.parametrize("busy", list(BUSY.values()), ids=list(BUSY))
def test_rows_that_are_busy_are_tried_again_for_a_while(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock, busy: Any
) -> None:
    """Tries are repeated, but not without end (JB-44)."""
    [task] = start_job(jobs, clock, 1)
    before = clock.monotonic()
    busy_jobs = DynamoDBJobs(client=FailingClient(client, busy, busy, busy), clock=clock)
    assert busy_jobs.record_results("job", [make_result(task)]) == 1
    assert clock.monotonic() > before
    always_busy = FailingClient(client, *[busy] * 1000)
    with pytest.raises(StoreUnavailable):
        DynamoDBJobs(client=always_busy, clock=clock).record_results("job", [make_result(task)])
    assert 3 < len(always_busy.calls) < 20
    assert clock.monotonic() - before < 60
    assert get_job(jobs).state.completed_tasks == 1


def test_waits_for_busy_rows_differ(client: Any, clock: ManualClock) -> None:
    """Writers that conflicted once must not conflict again (JB-44)."""
    waits = set()
    for _ in range(5):
        before = clock.monotonic()
        busy = FailingClient(client, make_error("TransactionConflictException"))
        DynamoDBJobs(client=busy, clock=clock).find_by_id("job")
        waits.add(clock.monotonic() - before)
    assert len(waits) > 1


def test_a_single_write_that_meets_a_transaction_is_tried_again(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    start_job(jobs, clock, 1)
    conflict = make_error("TransactionConflictException")
    conflicting = FailingClient(client, conflict, conflict, only="update_item")
    DynamoDBJobs(client=conflicting, clock=clock).set_total_tasks("job", 1)
    assert get_job(jobs).sealed


def test_a_task_that_was_counted_is_left_out_although_another_was_busy(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    tasks = start_job(jobs, clock, 2)
    jobs.record_results("job", [make_result(tasks[0])])
    mixed = make_cancellation("ConditionalCheckFailed", "TransactionConflict", "None")
    failing = FailingClient(client, mixed)
    failing_jobs = DynamoDBJobs(client=failing, clock=clock)
    assert failing_jobs.record_results("job", [make_result(task) for task in tasks]) == 1
    assert len(failing.list_calls("transact_write_items")) == 2
    assert get_job(jobs).state.completed_tasks == 2


def test_results_that_were_all_counted_still_say_that_the_job_is_closed(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    """DynamoDB need not report the job's condition if a task's condition failed already."""
    [task] = start_job(jobs, clock, 1)
    jobs.record_results("job", [make_result(task)])
    jobs.give_up("job", STALLED)
    failing = FailingClient(client, make_cancellation("ConditionalCheckFailed", "None"))
    with pytest.raises(JobClosed):
        DynamoDBJobs(client=failing, clock=clock).record_results("job", [make_result(task)])


def test_tasks_that_are_all_there_still_say_that_the_job_takes_none(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    tasks = start_job(jobs, clock, 1)
    jobs.set_total_tasks("job", 1)
    failing = FailingClient(client, make_cancellation("ConditionalCheckFailed", "None"))
    with pytest.raises(AlreadySealed):
        DynamoDBJobs(client=failing, clock=clock).add_tasks("job", tasks)
    jobs.give_up("job", STALLED)
    with pytest.raises(JobClosed):
        jobs.add_tasks("job", [])


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("AccessDeniedException", ConfigError, "dynamodb:GetItem"),
        ("UnrecognizedClientException", ConfigError, "credentials"),
        ("ExpiredTokenException", ConfigError, "credentials"),
        ("ValidationException", ConfigError, "holdfast export tables"),
        ("SomethingNew", StoreUnavailable, "GetItem: SomethingNew"),
    ],
)
def test_a_service_error_becomes_one_clear_line(
    client: Any, clock: ManualClock, code: str, kind: type[Exception], text: str
) -> None:
    failing = FailingClient(client, make_error(code))
    with pytest.raises(kind, match=text) as raised:
        DynamoDBJobs(client=failing, clock=clock).find_by_id("job")
    assert "\n" not in str(raised.value)
    assert len(failing.calls) == 1


# -- secrets


@pytest.mark.requirement("R004-168")
@pytest.mark.parametrize("name", WRITES)
def test_no_error_shows_the_token(
    client: Any, clock: ManualClock, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the text, nor its cause, nor an attribute of the error (JB-35, I-JB-13)."""
    caplog.set_level(logging.DEBUG, "holdfast")
    case = WRITES[name]
    jobs = DynamoDBJobs(client=client, clock=clock)
    PREPARATIONS[case.prepare](jobs, clock)
    for code in ("AccessDeniedException", "ValidationException", "InternalServerError"):
        failing = DynamoDBJobs(
            client=FailingClient(client, *[make_error(code)] * 50), clock=clock
        )
        _assert_error_hides_token(lambda: case.call(failing))  # noqa: B023  # called at once
    jobs.find_by_status(JobStatus.PROCESSING)
    assert CANARY not in caplog.text


REFUSALS: dict[str, Write] = {
    "save": lambda jobs: jobs.save(make_job(ManualClock())),
    "update_job_status": lambda jobs: jobs.update_job_status("job", JobStatus.COMPLETED),
    "update_job_state": lambda jobs: jobs.update_job_state("job", JobState()),
    "set_total_tasks": lambda jobs: jobs.set_total_tasks("job", 77),
    "add_tasks": lambda jobs: jobs.add_tasks("job", make_tasks("job", 9)),
    "record_results": lambda jobs: jobs.record_results(
        "job", [make_result(make_tasks("job", 1)[0])]
    ),
    "attach_token": lambda jobs: jobs.attach_token("job", TaskToken("other-" + CANARY)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_no_refusal_contains_the_row(jobs: DynamoDBJobs, clock: ManualClock, name: str) -> None:
    """DynamoDB responds with the row, and the row contains the token."""
    decide_job(jobs, clock)
    _assert_error_hides_token(lambda: REFUSALS[name](jobs))


def test_a_request_that_botocore_refuses_is_not_shown(client: Any, clock: ManualClock) -> None:
    unnamed_table = DynamoDBJobs(client=client, clock=clock, jobs_table="")
    with pytest.raises(ConfigError, match="check the table names"):
        unnamed_table.save(make_job(clock))
    failing = FailingClient(client, ParamValidationError(report=f"taskToken, value: {CANARY}"))
    _assert_error_hides_token(
        lambda: DynamoDBJobs(client=failing, clock=clock).save(make_job(clock))
    )


def _assert_error_hides_token(call: Callable[[], object]) -> None:
    with pytest.raises(HoldfastError) as raised:
        call()
    chain: list[BaseException] = [raised.value]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for error in chain:
        assert CANARY not in f"{error!r} {vars(error)}"
    assert CANARY not in "".join(traceback.format_exception(raised.value))
