"""DynamoDBJobs: its tables, its rows and its reads, beside the shared contract."""

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.events import Event, Events
from holdfast.exports import events as ev
from holdfast.exports.dynamodb import create_tables
from holdfast.exports.errors import InvalidJob, JobNotFound, StoreUnavailable
from holdfast.exports.model import ExportTask, JobError, JobStatus, TaskResult, TaskStatus
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from support.dynamodb.faults import (
    FailingClient,
    RecordingClient,
    SingleRowClient,
    StaleIndexClient,
    make_error,
)
from support.dynamodb.jobs import (
    CANARY,
    STALLED,
    count_rows,
    decide_job,
    get_job,
    make_job,
    make_result,
    make_tasks,
    read_row,
    start_job,
)
from support.exports.dynamodb_store import Store
from support.exports.simulated_step_functions import SimulatedStepFunctions

# -- the tables


@pytest.mark.requirement(
    "R004-052",
    "R004-066",
    "R004-201",
    "R004-202",
    "R004-203",
    "R004-204",
    "R004-234",
    "R004-235",
)
def test_the_tables_have_the_keys_and_the_index_that_the_queries_need(store: Store) -> None:
    """The index holds only keys and is
    never ordered by updatedAt, so that counting does not write to the index (JB-22).
    """
    for name in ("ExportJobs", "ExportTasks"):
        store.client.delete_table(TableName=name)
    assert create_tables(store.client) == ["ExportJobs", "ExportTasks"]
    table = store.client.describe_table(TableName="ExportJobs")["Table"]
    assert table["KeySchema"] == [{"AttributeName": "jobId", "KeyType": "HASH"}]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    [index] = table["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "status-index"
    assert index["KeySchema"] == [
        {"AttributeName": "status", "KeyType": "HASH"},
        {"AttributeName": "createdAt", "KeyType": "RANGE"},
    ]
    assert index["Projection"]["ProjectionType"] == "KEYS_ONLY"
    table = store.client.describe_table(TableName="ExportTasks")["Table"]
    assert [key["AttributeName"] for key in table["KeySchema"]] == ["jobId", "taskId"]
    for name in ("ExportJobs", "ExportTasks"):
        ttl = store.client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "ttl")


def test_existing_tables_are_left_alone(store: Store) -> None:
    store.open(store.client).save(make_job(store.clock))
    assert create_tables(store.client) == []
    assert count_rows(store.client, "ExportJobs") == 1
    assert create_tables(store.client, jobs_table="MyJobs") == ["MyJobs"]


def test_an_error_about_a_missing_table_says_how_to_create_it(store: Store) -> None:
    jobs = store.open(store.client, jobs_table="Absent", tasks_table="Absent")
    for call in (
        lambda: jobs.find_by_id("job"),
        lambda: jobs.save(make_job(store.clock)),
        lambda: jobs.find_by_status(JobStatus.DOWNLOADING),
        lambda: jobs.record_results("job", [TaskResult("job", "task", True)]),
    ):
        with pytest.raises(
            ConfigError, match=r"holdfast export tables --jobs dynamodb:.* --create"
        ):
            call()


# -- rows


@pytest.mark.requirement(
    "R004-016",
    "R004-017",
    "R004-052",
    "R004-053",
    "R004-054",
    "R004-055",
    "R004-056",
    "R004-057",
    "R004-058",
    "R004-059",
    "R004-060",
    "R004-061",
    "R004-062",
    "R004-063",
    "R004-064",
    "R004-065",
    "R004-068",
)
def test_a_row_has_the_seed_s_names_and_times_that_sort(store: Store) -> None:
    store.jobs.save(make_job(store.clock, metadata={"source": "here"}))
    row = read_row(store.client)
    assert row["jobId"] == {"S": "job"}
    assert (row["exportId"], row["userId"]) == ({"S": "export"}, {"S": "user"})
    assert row["status"] == {"S": "PROCESSING"}
    for name in ("totalTasks", "completedTasks", "failedTasks", "remainingTasks"):
        assert row[name] == {"N": "0"}
    assert row["taskToken"] == {"S": CANARY}
    assert row["metadata"] == {"M": {"source": {"S": "here"}}}
    for name in ("createdAt", "updatedAt", "lastProgressAt"):
        assert row[name] == {"S": "2027-01-15T08:00:00.000000Z"}
    assert not {"completedAt", "error", "ttl", "callbackState"} & set(row)


@pytest.mark.requirement("R004-065")
def test_rows_expire_when_they_are_finished_and_not_before(store: Store) -> None:
    """(JB-36)."""
    jobs = store.open(store.client, keep_seconds=60.0)
    jobs.save(replace(make_job(store.clock), ttl=5))
    jobs.add_tasks("job", tasks := make_tasks("job", 2))
    jobs.update_job_status("job", JobStatus.DOWNLOADING)
    jobs.record_results("job", [make_result(tasks[0])])
    ends = {"N": str(int(store.clock.time()) + 60)}
    rows = store.client.scan(TableName="ExportTasks")["Items"]
    assert [row.get("ttl") for row in sorted(rows, key=lambda r: r["taskId"]["S"])] == [
        ends,
        None,
    ]
    jobs.give_up("job", STALLED)
    assert "ttl" not in read_row(store.client)
    jobs.settle("job", JobStatus.FAILED, STALLED)
    assert read_row(store.client)["ttl"] == ends


@pytest.mark.requirement("R004-064")
@pytest.mark.parametrize(
    "value",
    [0.1, -2.5e-7, 1.0, -0.0, 1e22, 123456789.125, 2**53, 10**37, -1, 0, True, None, "", "1.0"],
)
def test_metadata_comes_back_unchanged(store: Store, value: Any) -> None:
    """DynamoDB stores 1.0 as 1 and moto does not, so the test rewrites the row."""
    store.jobs.save(
        make_job(store.clock, metadata={"a": value, "b/~": [value, 1, {"c": value}], "d": {}})
    )
    _normalise_numbers(store.client)
    metadata = get_job(store.jobs).metadata
    assert metadata == {"a": value, "b/~": [value, 1, {"c": value}], "d": {}}
    for element in (metadata["a"], metadata["b/~"][0], metadata["b/~"][2]["c"]):
        assert type(element) is type(value)
    assert type(metadata["b/~"][1]) is int


def test_names_that_look_like_paths_are_distinguished(store: Store) -> None:
    store.jobs.save(
        make_job(store.clock, metadata={"ab": 1, "a/b": 2.0, "a": {"b": 3}, "~1": 4, "/": 5.0})
    )
    _normalise_numbers(store.client)
    stored = get_job(store.jobs).metadata
    assert [type(stored[name]) for name in ("ab", "a/b", "~1", "/")] == [int, float, int, float]
    assert type(stored["a"]["b"]) is int


def _normalise_numbers(client: Any) -> None:
    """Remove trailing zeros after the decimal point, as DynamoDB does."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: element.rstrip("0").rstrip(".") or "0"
                if name == "N" and isinstance(element, str) and "." in element
                else cut(element)
                for name, element in value.items()
            }
        return [cut(element) for element in value] if isinstance(value, list) else value

    client.put_item(TableName="ExportJobs", Item=cut(read_row(client)))


@pytest.mark.parametrize(
    "bad",
    [float("nan"), float("inf"), 1e200, 1e-200, 10**38 + 1, {1: 2}, {"a": b"x"}, {1}, "\ud800"],
    ids=repr,
)
def test_metadata_that_would_come_back_different_is_refused(store: Store, bad: Any) -> None:
    with pytest.raises(InvalidJob):
        store.jobs.save(make_job(store.clock, metadata={"deep": [bad]}))
    assert count_rows(store.client, "ExportJobs") == 0


def test_metadata_that_is_nested_too_deep_is_refused(store: Store) -> None:
    deep: Any = "value"
    for _ in range(40):
        deep = [deep]
    with pytest.raises(InvalidJob, match="deeper"):
        store.jobs.save(make_job(store.clock, metadata={"a": deep}))


def test_a_row_that_is_too_large_is_refused_with_its_size(store: Store) -> None:
    with pytest.raises(InvalidJob, match=r"too large: it has \d+ bytes"):
        store.jobs.save(make_job(store.clock, metadata={"large": "x" * 400_000}))
    store.jobs.save(make_job(store.clock))
    large = ExportTask.create("job", "https://files.example/" + "x" * 410_000, "key")
    with pytest.raises(InvalidJob, match=r"too large: it has \d+ bytes"):
        store.jobs.add_tasks("job", [large])
    assert count_rows(store.client, "ExportTasks") == 0


def test_the_largest_job_can_still_end_and_a_long_reason_is_cut(store: Store) -> None:
    """moto and DynamoDB refuse a row above 400 KB, whatever makes it grow (JB-38)."""
    store.jobs.save(make_job(store.clock, metadata={"large": "x" * 320_000}))
    reason = JobError("Failed", "\U0001f642" * 100_000)
    assert store.jobs.give_up("job", reason)
    assert store.jobs.settle("job", JobStatus.FAILED, reason)
    stored_error = get_job(store.jobs).error
    assert stored_error is not None
    assert stored_error.message.endswith("… (cut)")
    assert 7_000 < len(stored_error.message) <= 8_000


@pytest.mark.parametrize("job_id", ["", "x" * 2049])
def test_an_id_that_no_row_can_have_names_no_job(store: Store, job_id: str) -> None:
    with pytest.raises(InvalidJob):
        store.jobs.save(make_job(store.clock, job_id))
    assert store.jobs.find_by_id(job_id) is None
    with pytest.raises(JobNotFound):
        store.jobs.add_tasks(job_id, make_tasks(job_id, 1))
    with pytest.raises(JobNotFound):
        store.jobs.record_results(job_id, [TaskResult(job_id, "task", True)])


# -- reads


@pytest.mark.requirement("R004-195")
def test_pages_of_one_row_are_all_read(store: Store) -> None:
    """All pages are read, although each has one row (I-JB-10, JB-23)."""
    tasks = start_job(store.jobs, store.clock, 4)
    store.jobs.record_results("job", [make_result(task) for task in tasks[1::2]])
    for n in range(3):
        store.jobs.save(make_job(store.clock, f"other-{n}"))
    single_row = SingleRowClient(store.client)
    paged = store.open(single_row)
    processing = paged.find_by_status(JobStatus.PROCESSING)
    assert sorted(job.job_id for job in processing) == ["other-0", "other-1", "other-2"]
    assert len(single_row.list_calls("query")) >= 3
    assert len(single_row.list_calls("batch_get_item")) == 3
    assert [task.task_id for task in paged.tasks("job")] == [task.task_id for task in tasks]
    pending = paged.tasks("job", status=TaskStatus.PENDING, limit=2)
    assert [task.task_id for task in pending] == [task.task_id for task in tasks[0::2]]


def test_keys_that_stay_unprocessed_raise_an_error(store: Store) -> None:
    class UnprocessingClient(RecordingClient):
        def respond(self, operation: str, arguments: Any) -> Any:
            if operation == "batch_get_item":
                return {"Responses": {}, "UnprocessedKeys": arguments["RequestItems"]}
            return super().respond(operation, arguments)

    store.jobs.save(make_job(store.clock))
    client_without_rows = UnprocessingClient(store.client)
    with pytest.raises(StoreUnavailable, match="UnprocessedKeys"):
        store.open(client_without_rows).find_by_status(JobStatus.PROCESSING)
    assert 2 < len(client_without_rows.list_calls("batch_get_item")) < 20


@pytest.mark.requirement("R004-050", "R004-114")
def test_reads_by_id_see_what_was_written_last(store: Store) -> None:
    """With an old counter a job might never be finished (JB-10)."""
    recorder = RecordingClient(store.client)
    jobs = store.open(recorder)
    decide_job(jobs, store.clock)
    jobs.find_by_id("job")
    jobs.tasks("job")
    jobs.find_by_status(JobStatus.DOWNLOADING)
    gets = recorder.list_calls("get_item")
    assert len(gets) >= 3
    assert all(get["ConsistentRead"] is True for get in gets)
    [batch] = recorder.list_calls("batch_get_item")
    assert batch["RequestItems"]["ExportJobs"]["ConsistentRead"] is True
    task_query, index_query = recorder.list_calls("query")
    assert task_query["ConsistentRead"] is True
    assert index_query["IndexName"] == "status-index"  # R004-233


@pytest.mark.requirement("R004-050", "R004-127", "R004-195")
def test_a_job_that_the_index_still_lists_is_judged_by_its_row(store: Store) -> None:
    """The index lags behind (JB-25)."""
    decide_job(store.jobs, store.clock)
    lagging = store.open(StaleIndexClient(store.client))
    assert len(lagging.find_by_status(JobStatus.DOWNLOADING)) == 1
    store.jobs.settle("job", JobStatus.COMPLETED, None)
    assert lagging.find_by_status(JobStatus.DOWNLOADING) == []


def test_a_job_that_the_index_lists_twice_is_found_once(store: Store) -> None:
    class DoublingClient(RecordingClient):
        def respond(self, operation: str, arguments: Any) -> Any:
            respond = super().respond(operation, arguments)
            return (
                respond | {"Items": respond["Items"] * 2} if operation == "query" else respond
            )

    store.jobs.save(make_job(store.clock))
    doubling_jobs = store.open(DoublingClient(store.client))
    assert doubling_jobs.find_by_status(JobStatus.PROCESSING) == [get_job(store.jobs)]


@pytest.mark.requirement("R004-092", "R004-200", "R004-261")
def test_finding_by_status_is_logged_and_so_is_its_failure(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    store.open(store.client).find_by_status(JobStatus.DOWNLOADING)
    assert "Found 0 jobs with status DOWNLOADING" in caplog.text
    failing = FailingClient(store.client, make_error("AccessDeniedException"))
    with pytest.raises(ConfigError, match="dynamodb:Query"):
        store.open(failing).find_by_status(JobStatus.FAILED)
    assert "Failed to query jobs by status FAILED: DynamoDB denied" in caplog.text
    assert caplog.records[-1].levelno == logging.ERROR


# -- as heartbeats and operators read it


@pytest.mark.requirement("R004-002", "R004-004", "R004-017", "R004-091", "R004-133", "R004-270")
def test_a_heartbeat_event_has_the_progress_of_the_row(store: Store) -> None:
    """The token comes from the row, and
    counters are read again in each cycle."""
    jobs = store.open(store.client)
    step_functions, emitted = SimulatedStepFunctions(store.clock), list[Event]()
    token = step_functions.open()
    tasks = start_job(jobs, store.clock, 4)
    jobs.set_total_tasks("job", 4)
    jobs.attach_token("job", token)
    orchestrator = HeartbeatOrchestrator(
        jobs,
        step_functions,
        token_closed=lambda job, code: None,
        events=Events(emitted.append),
        clock=store.clock,
    )
    for task in (None, *tasks[:2]):
        if task is not None:
            jobs.record_results("job", [make_result(task)])
        assert orchestrator.trigger_heartbeat() == 1
    orchestrator.stop()
    beats = [event for event in emitted if isinstance(event, ev.HeartbeatSent)]
    assert [(beat.completed_tasks, beat.percent) for beat in beats] == [
        (0, 0),
        (1, 25),
        (2, 50),
    ]
    assert len(step_functions.heartbeats(token)) == 3


@pytest.mark.requirement("R004-196", "R004-233", "R004-251", "R004-262", "R004-263")
def test_listing_active_jobs_is_one_query_and_a_read_for_a_hundred_of_them(
    store: Store,
) -> None:
    """Never a Scan, and jobs without a
    token are listed, so that they can be counted."""
    table = RecordingClient(store.client)
    jobs = store.open(table)
    for n in range(120):
        jobs.save(make_job(store.clock, f"{n}", task_token=CANARY if n % 2 else None))
    table.calls.clear()
    assert len(jobs.find_by_status(JobStatus.PROCESSING)) == 120
    assert Counter(name for name, _ in table.calls) == {"query": 1, "batch_get_item": 2}
    [query] = table.list_calls("query")
    assert query["IndexName"] == "status-index"
    assert "FilterExpression" not in query
    read = [
        call["RequestItems"]["ExportJobs"]["Keys"]
        for call in table.list_calls("batch_get_item")
    ]
    assert sorted(map(len, read)) == [20, 100]


@pytest.mark.requirement("R004-061", "R004-062", "R004-063", "R004-065", "R004-068")
def test_the_row_of_a_job_that_failed_has_the_seeds_optional_names(store: Store) -> None:
    jobs = store.open(store.client, keep_seconds=60.0)
    jobs.save(make_job(store.clock))
    jobs.give_up("job", error := JobError("JobStalled", "nothing moves"))
    assert jobs.settle("job", JobStatus.FAILED, error)
    row = read_row(store.client)
    assert row["status"] == {"S": "FAILED"}
    assert row["completedAt"] == row["updatedAt"] == {"S": "2027-01-15T08:00:00.000000Z"}
    assert row["error"] == {"M": {"code": {"S": "JobStalled"}, "message": {"S": error.message}}}
    assert row["ttl"] == {"N": str(int(store.clock.time()) + 60)}
    assert "taskToken" not in row
