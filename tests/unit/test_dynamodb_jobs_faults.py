"""DynamoDBJobs when DynamoDB is busy, away or says no; and what must not be said then."""

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ParamValidationError
from dynamodb_faults import Refuses, cancelled, error
from dynamodb_kit import (
    CANARY,
    PREPARED,
    STALLED,
    WRITES,
    Write,
    decided,
    emptied,
    found,
    new_job,
    result,
    service,
    started,
    tasks_of,
)

from holdfast.adapters.aws.dynamodb import DynamoDBJobs
from holdfast.adapters.aws.dynamodb.client import DynamoDBClient
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.jobs.errors import AlreadySealed, JobClosed, StoreUnavailable
from holdfast.jobs.model import JobState, JobStatus, TaskToken
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


# -- a store that is busy, closed or away

BUSY = {
    "conflict": cancelled("None", "TransactionConflict"),
    "throttled row": cancelled("ThrottlingError", "None"),
    "throughput of a row": cancelled("ProvisionedThroughputExceeded", "None"),
    "throughput": error("ProvisionedThroughputExceededException"),
    "throttled": error("ThrottlingException"),
    "in progress": error("TransactionInProgressException"),
    "their own fault": error("InternalServerError", 500),
}


@pytest.mark.parametrize("busy", list(BUSY.values()), ids=list(BUSY))
def test_rows_that_are_busy_are_tried_again_for_a_while(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock, busy: Any
) -> None:
    """JB-44."""
    [task] = started(jobs, clock, 1)
    before = clock.monotonic()
    some = DynamoDBJobs(client=Refuses(client, busy, busy, busy), clock=clock)
    assert some.record_results("job", [result(task)]) == 1
    assert clock.monotonic() > before
    endless = Refuses(client, *[busy] * 1000)
    with pytest.raises(StoreUnavailable):
        DynamoDBJobs(client=endless, clock=clock).record_results("job", [result(task)])
    assert 3 < len(endless.calls) < 20
    assert clock.monotonic() - before < 60
    assert found(jobs).state.completed_tasks == 1


def test_waits_for_busy_rows_differ(client: Any, clock: ManualClock) -> None:
    """JB-44: writers that met once must not meet again."""
    waits = set()
    for _ in range(5):
        before = clock.monotonic()
        busy = Refuses(client, error("TransactionConflictException"))
        DynamoDBJobs(client=busy, clock=clock).find_by_id("job")
        waits.add(clock.monotonic() - before)
    assert len(waits) > 1


def test_a_single_write_that_meets_a_transaction_is_tried_again(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    started(jobs, clock, 1)
    conflict = error("TransactionConflictException")
    meeting = Refuses(client, conflict, conflict, only="update_item")
    DynamoDBJobs(client=meeting, clock=clock).set_total_tasks("job", 1)
    assert found(jobs).sealed


def test_a_task_that_was_counted_is_left_out_although_another_was_busy(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    tasks = started(jobs, clock, 2)
    jobs.record_results("job", [result(tasks[0])])
    mixed = cancelled("ConditionalCheckFailed", "TransactionConflict", "None")
    noted = Refuses(client, mixed)
    some = DynamoDBJobs(client=noted, clock=clock)
    assert some.record_results("job", [result(task) for task in tasks]) == 1
    assert len(noted.made("transact_write_items")) == 2
    assert found(jobs).state.completed_tasks == 2


def test_results_that_were_all_counted_still_say_that_the_job_is_closed(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    """DynamoDB need not say of the job what is wrong, when tasks were wrong already."""
    [task] = started(jobs, clock, 1)
    jobs.record_results("job", [result(task)])
    jobs.give_up("job", STALLED)
    silent = Refuses(client, cancelled("ConditionalCheckFailed", "None"))
    with pytest.raises(JobClosed):
        DynamoDBJobs(client=silent, clock=clock).record_results("job", [result(task)])


def test_tasks_that_are_all_there_still_say_that_the_job_takes_none(
    jobs: DynamoDBJobs, client: Any, clock: ManualClock
) -> None:
    tasks = started(jobs, clock, 1)
    jobs.set_total_tasks("job", 1)
    silent = Refuses(client, cancelled("ConditionalCheckFailed", "None"))
    with pytest.raises(AlreadySealed):
        DynamoDBJobs(client=silent, clock=clock).add_tasks("job", tasks)
    jobs.give_up("job", STALLED)
    with pytest.raises(JobClosed):
        jobs.add_tasks("job", [])


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("AccessDeniedException", ConfigError, "dynamodb:GetItem"),
        ("UnrecognizedClientException", ConfigError, "credentials"),
        ("ExpiredTokenException", ConfigError, "credentials"),
        ("ValidationException", ConfigError, "holdfast export tables"),
        ("SomethingNew", StoreUnavailable, "GetItem: SomethingNew"),
    ],
)
def test_what_the_service_says_becomes_one_clear_line(
    client: Any, clock: ManualClock, code: str, kind: type[Exception], says: str
) -> None:
    refusing = Refuses(client, error(code))
    with pytest.raises(kind, match=says) as raised:
        DynamoDBJobs(client=refusing, clock=clock).find_by_id("job")
    assert "\n" not in str(raised.value)
    assert len(refusing.calls) == 1


def test_a_store_that_is_not_there_is_unavailable(clock: ManualClock) -> None:
    nobody_listens = boto3.client(
        "dynamodb",
        region_name="us-east-1",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with pytest.raises(StoreUnavailable, match="EndpointConnectionError"):
        DynamoDBJobs(client=nobody_listens, clock=clock).find_by_id("job")


# -- secrets and processes


@pytest.mark.parametrize("name", WRITES)
def test_no_failure_tells_the_token(
    client: Any, clock: ManualClock, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """JB-35, I-JB-13: neither the text, nor what it came from, nor what is kept in it."""
    caplog.set_level(logging.DEBUG, "holdfast")
    case = WRITES[name]
    plain = DynamoDBJobs(client=client, clock=clock)
    PREPARED[case.prepare](plain, clock)
    for code in ("AccessDeniedException", "ValidationException", "InternalServerError"):
        refusing = DynamoDBJobs(client=Refuses(client, *[error(code)] * 50), clock=clock)
        _assert_silent(lambda: case.call(refusing))  # noqa: B023  # called at once
    plain.find_by_status(JobStatus.PROCESSING)
    assert CANARY not in caplog.text


REFUSALS: dict[str, Write] = {
    "save": lambda jobs: jobs.save(new_job(ManualClock())),
    "update_job_status": lambda jobs: jobs.update_job_status("job", JobStatus.COMPLETED),
    "update_job_state": lambda jobs: jobs.update_job_state("job", JobState()),
    "set_total_tasks": lambda jobs: jobs.set_total_tasks("job", 77),
    "add_tasks": lambda jobs: jobs.add_tasks("job", tasks_of("job", 9)),
    "record_results": lambda jobs: jobs.record_results("job", [result(tasks_of("job", 1)[0])]),
    "attach_token": lambda jobs: jobs.attach_token("job", TaskToken("other-" + CANARY)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_no_refusal_holds_the_row_that_refused(
    jobs: DynamoDBJobs, clock: ManualClock, name: str
) -> None:
    """DynamoDB answers with the row, and the row holds the token."""
    decided(jobs, clock)
    _assert_silent(lambda: REFUSALS[name](jobs))


def test_a_request_that_botocore_refuses_is_not_shown(client: Any, clock: ManualClock) -> None:
    nameless = DynamoDBJobs(client=client, clock=clock, jobs_table="")
    with pytest.raises(ConfigError, match="check the table names"):
        nameless.save(new_job(clock))
    refusing = Refuses(client, ParamValidationError(report=f"taskToken, value: {CANARY}"))
    _assert_silent(lambda: DynamoDBJobs(client=refusing, clock=clock).save(new_job(clock)))


def _assert_silent(call: Callable[[], object]) -> None:
    with pytest.raises(HoldfastError) as raised:
        call()
    chain: list[BaseException] = [raised.value]
    while nearer := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(nearer)
    for one in chain:
        assert CANARY not in f"{one!r} {vars(one)}"
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def test_a_forked_child_makes_a_client_of_its_own(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    calls = DynamoDBClient(None, clock, tables_command="holdfast export tables")
    parents = calls.client
    assert calls.client is parents
    if (pid := os.fork()) == 0:
        try:
            own = calls.client is not parents and calls.client is calls.client
        except BaseException:
            own = False
        os._exit(0 if own else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert calls.client is parents
    calls.close()
    assert calls.client is not parents
    calls.close()
