"""The cost of many jobs and many cycles: reads of DynamoDB, calls a second, memory."""

import gc
import statistics
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.events import Events
from holdfast.exports.model import ExportJob, JobState, JobStatus, TaskToken
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from support.exports.orchestrator import World

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
