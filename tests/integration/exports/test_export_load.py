"""The cost of many jobs and many cycles: reads of DynamoDB, calls a second, memory."""

import gc
import statistics
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from holdfast.events import Event, Events
from holdfast.exports import events as ev
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.heartbeats.orchestrator import HeartbeatOrchestrator
from holdfast.exports.model import ExportJob, JobError, JobState, JobStatus, TaskToken
from holdfast.exports.simulated_step_functions import SimulatedStepFunctions
from holdfast.testing import ManualClock
from support.dynamodb.faults import RecordingClient
from support.dynamodb.jobs import (
    CANARY,
    make_job,
    make_result,
    read_row,
    start_job,
)
from support.dynamodb.service import clear_tables, start_service
from support.exports.orchestrator import World

# -- DynamoDB, as heartbeats and operators read it


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with start_service() as client:
        yield client


@pytest.fixture
def table(moto: Any) -> RecordingClient:
    return RecordingClient(clear_tables(moto))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.mark.requirement("R004-002", "R004-004", "R004-017", "R004-091", "R004-133", "R004-270")
def test_a_heartbeat_event_has_the_progress_of_the_row(
    table: RecordingClient, clock: ManualClock
) -> None:
    """The token comes from the row, and
    counters are read again in each cycle."""
    jobs = DynamoDBJobs(client=table, clock=clock)
    step_functions, emitted = SimulatedStepFunctions(clock), list[Event]()
    token = step_functions.open()
    tasks = start_job(jobs, clock, 4)
    jobs.set_total_tasks("job", 4)
    jobs.attach_token("job", token)
    orchestrator = HeartbeatOrchestrator(
        jobs,
        step_functions,
        token_closed=lambda job, code: None,
        events=Events(emitted.append),
        clock=clock,
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
    table: RecordingClient, clock: ManualClock
) -> None:
    """Never a Scan, and jobs without a
    token are listed, so that they can be counted."""
    jobs = DynamoDBJobs(client=table, clock=clock)
    for n in range(120):
        jobs.save(make_job(clock, f"{n}", task_token=CANARY if n % 2 else None))
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
def test_the_row_of_a_job_that_failed_has_the_seeds_optional_names(
    table: RecordingClient, clock: ManualClock
) -> None:
    jobs = DynamoDBJobs(client=table, clock=clock, keep_seconds=60.0)
    jobs.save(make_job(clock))
    jobs.give_up("job", error := JobError("JobStalled", "nothing moves"))
    assert jobs.settle("job", JobStatus.FAILED, error)
    row = read_row(table.client)
    assert row["status"] == {"S": "FAILED"}
    assert row["completedAt"] == row["updatedAt"] == {"S": "2027-01-15T08:00:00.000000Z"}
    assert row["error"] == {"M": {"code": {"S": "JobStalled"}, "message": {"S": error.message}}}
    assert row["ttl"] == {"N": str(int(clock.time()) + 60)}
    assert "taskToken" not in row


# -- load


@pytest.mark.requirement("R004-250", "R004-252")
def test_heartbeats_of_thousands_of_new_jobs_are_not_throttled() -> None:
    """After a start all are due at once. 500 a second get their first
    heartbeat, and those that had it get the next one at their offset meanwhile."""
    world = World(heartbeat_seconds=60.0)
    jobs = [world.add_job(f"job-{n}") for n in range(1500)]
    world.let_pass(4, step=0.1)
    world.orchestrator.stop()
    first = Counter(int(world.list_beats(job)[0]) for job in jobs)
    assert max(first.values()) <= 575
    assert sum(first[second] for second in (0, 1, 2)) >= 1400
    every = Counter(int(at) for job in jobs for at in world.list_beats(job))
    assert max(every.values()) <= 575 + 1500 / 15


@pytest.mark.requirement("R004-098")
def test_heartbeats_of_a_few_new_jobs_are_sent_at_once() -> None:
    """It is unknown when their last heartbeat was sent."""
    world = World(heartbeat_seconds=60.0)
    jobs = [world.add_job(f"job-{n}") for n in range(100)]
    world.let_pass(0)
    world.orchestrator.stop()
    assert [world.list_beats(job) for job in jobs] == [[0.0]] * 100


class NoMemory:
    """Accepts heartbeats and keeps no record of them."""

    def send_task_heartbeat(self, token: TaskToken) -> None: ...

    send_task_success = send_task_failure = None


def run_cycles(orchestrator: HeartbeatOrchestrator, world: World, cycles: range) -> None:
    """Run cycles, in each of which one job comes, gets a heartbeat, and ends."""
    for cycle in cycles:
        job = world.store.put(
            ExportJob.create(f"job-{cycle}", "e", "u", JobState(JobStatus.DOWNLOADING), "token")
        )
        job = world.store.put(replace(job, last_progress_at=world.clock.time()))
        orchestrator.beat_now(job)
        world.run_until_idle(orchestrator)
        orchestrator.forget(job.job_id)
        del world.store.jobs[job.job_id]
        world.clock.advance(30.0)
        world.run_until_idle(orchestrator)
    world.store.read.clear()


@pytest.mark.requirement("R004-129", "R004-268")
def test_memory_does_not_grow_with_the_number_of_cycles() -> None:
    """250 cycles and 250 jobs that came and went, in five parts: a leak shows in each of
    them, and what is allocated only once (a cache, the record of the coverage) in one."""
    world = World(stall_seconds=None)
    for n in range(10):
        world.add_job(f"stays-{n}")
    orchestrator = world.make_orchestrator(
        step_functions=NoMemory(), events=Events(), stall_seconds=None, concurrency=2
    )
    run_cycles(orchestrator, world, range(100))
    tracemalloc.start()
    try:
        sizes = [measure_traced_memory()]
        for start in range(100, 350, 50):
            run_cycles(orchestrator, world, range(start, start + 50))
            sizes.append(measure_traced_memory())
    finally:
        tracemalloc.stop()
        orchestrator.stop()
    growth = statistics.median(after - before for before, after in pairwise(sizes))
    assert growth < 50 * 48  # 48 bytes a cycle, which is less than the name of a job


def measure_traced_memory() -> int:
    """Return the traced bytes that are in use after a garbage collection."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
