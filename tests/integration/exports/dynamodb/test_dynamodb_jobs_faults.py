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
from support.exports.dynamodb_store import Store

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
def test_rows_that_are_busy_are_tried_again_for_a_while(store: Store, busy: Any) -> None:
    """Tries are repeated, but not without end (JB-44)."""
    [task] = start_job(store.jobs, store.clock, 1)
    before = store.clock.monotonic()
    busy_jobs = store.open(FailingClient(store.client, busy, busy, busy))
    assert busy_jobs.record_results("job", [make_result(task)]) == 1
    assert store.clock.monotonic() > before
    always_busy = FailingClient(store.client, *[busy] * 1000)
    with pytest.raises(StoreUnavailable):
        store.open(always_busy).record_results("job", [make_result(task)])
    assert 3 < len(always_busy.calls) < 20
    assert store.clock.monotonic() - before < 60
    assert get_job(store.jobs).state.completed_tasks == 1


def test_waits_for_busy_rows_differ(store: Store) -> None:
    """Writers that conflicted once must not conflict again (JB-44)."""
    waits = set()
    for _ in range(5):
        before = store.clock.monotonic()
        busy = FailingClient(store.client, make_error("TransactionConflictException"))
        store.open(busy).find_by_id("job")
        waits.add(store.clock.monotonic() - before)
    assert len(waits) > 1


def test_a_single_write_that_meets_a_transaction_is_tried_again(store: Store) -> None:
    start_job(store.jobs, store.clock, 1)
    conflict = make_error("TransactionConflictException")
    conflicting = FailingClient(store.client, conflict, conflict, only="update_item")
    store.open(conflicting).set_total_tasks("job", 1)
    assert get_job(store.jobs).sealed


def test_a_task_that_was_counted_is_left_out_although_another_was_busy(store: Store) -> None:
    tasks = start_job(store.jobs, store.clock, 2)
    store.jobs.record_results("job", [make_result(tasks[0])])
    mixed = make_cancellation("ConditionalCheckFailed", "TransactionConflict", "None")
    failing = FailingClient(store.client, mixed, only="transact_write_items")
    failing_jobs = store.open(failing)
    assert failing_jobs.record_results("job", [make_result(task) for task in tasks]) == 1
    assert len(failing.list_calls("transact_write_items")) == 2
    assert get_job(store.jobs).state.completed_tasks == 2


def test_results_that_were_all_counted_still_say_that_the_job_is_closed(store: Store) -> None:
    """DynamoDB need not report the job's condition if a task's condition failed already."""
    [task] = start_job(store.jobs, store.clock, 1)
    store.jobs.record_results("job", [make_result(task)])
    store.jobs.give_up("job", STALLED)
    refused = make_cancellation("ConditionalCheckFailed", "None")
    failing = FailingClient(store.client, refused, only="transact_write_items")
    with pytest.raises(JobClosed):
        store.open(failing).record_results("job", [make_result(task)])


def test_tasks_that_are_all_there_still_say_that_the_job_takes_none(store: Store) -> None:
    tasks = start_job(store.jobs, store.clock, 1)
    store.jobs.set_total_tasks("job", 1)
    refused = make_cancellation("ConditionalCheckFailed", "None")
    failing = FailingClient(store.client, refused, only="transact_write_items")
    with pytest.raises(AlreadySealed):
        store.open(failing).add_tasks("job", tasks)
    store.jobs.give_up("job", STALLED)
    with pytest.raises(JobClosed):
        store.jobs.add_tasks("job", [])


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
    store: Store, code: str, kind: type[Exception], text: str
) -> None:
    failing = FailingClient(store.client, make_error(code))
    with pytest.raises(kind, match=text) as raised:
        store.open(failing).find_by_id("job")
    assert "\n" not in str(raised.value)
    assert len(failing.calls) == 1


# -- secrets


@pytest.mark.requirement("R004-168")
@pytest.mark.parametrize("name", WRITES)
def test_no_error_shows_the_token(
    store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the text, nor its cause, nor an attribute of the error (JB-35, I-JB-13)."""
    caplog.set_level(logging.DEBUG, "holdfast")
    case = WRITES[name]
    jobs = store.open(store.client)
    PREPARATIONS[case.prepare](jobs, store.clock)
    for code in ("AccessDeniedException", "ValidationException", "InternalServerError"):
        failing = store.open(FailingClient(store.client, *[make_error(code)] * 50))
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
def test_no_refusal_contains_the_row(store: Store, name: str) -> None:
    """DynamoDB responds with the row, and the row contains the token."""
    decide_job(store.jobs, store.clock)
    _assert_error_hides_token(lambda: REFUSALS[name](store.jobs))


def test_a_request_that_botocore_refuses_is_not_shown(store: Store) -> None:
    unnamed_table = store.open(store.client, jobs_table="")
    with pytest.raises(ConfigError, match="check the table names"):
        unnamed_table.save(make_job(store.clock))
    failing = FailingClient(
        store.client, ParamValidationError(report=f"taskToken, value: {CANARY}")
    )
    _assert_error_hides_token(lambda: store.open(failing).save(make_job(store.clock)))


def _assert_error_hides_token(call: Callable[[], object]) -> None:
    with pytest.raises(HoldfastError) as raised:
        call()
    chain: list[BaseException] = [raised.value]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for error in chain:
        assert CANARY not in f"{error!r} {vars(error)}"
    assert CANARY not in "".join(traceback.format_exception(raised.value))
