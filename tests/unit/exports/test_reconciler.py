"""The reconciler finishes what crashed processes left unfinished."""

from typing import Any

import pytest

from holdfast.events import Event, Events
from holdfast.exports import events as ev
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.model import (
    ACTIVE,
    CallbackState,
    ExportJob,
    JobError,
    JobStatus,
    TaskToken,
)
from holdfast.exports.reconciler import ActiveJobLister, Reconciler
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.exports.tracker import JobTracker
from support.exports.stage import JobStage


class Stage(JobStage):
    """A reconciler over a store in memory and a simulated Step Functions."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.reconciler = Reconciler(
            self.jobs,
            self.tracker,
            events=self.observed,
            clock=self.clock,
            **options,
        )

    def read_status(self, job_id: str) -> JobStatus:
        """Return the status of the stored job."""
        return self.read_job(job_id).status

    def list_event_types(self) -> list[type[Event]]:
        """Return the types of the emitted events."""
        return [type(event) for event in self.events]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_job_whose_last_counting_process_crashed_is_finished(stage: Stage) -> None:
    """(JB-06)"""
    stage.jobs.record_results("a", [stage.begin_sealed("a")])
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.COMPLETED


def test_a_pending_callback_is_sent(stage: Stage) -> None:
    """(JB-07, JB-08)"""
    stage.jobs.record_results("a", [stage.begin_sealed("a", token=stage.step_functions.open())])
    stage.jobs.claim_outcome("a")
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.COMPLETED
    assert len(stage.step_functions.accepted) == 1


def test_a_callback_that_another_process_sends_is_left_to_it_for_a_while(stage: Stage) -> None:
    stage.jobs.record_results("a", [stage.begin_sealed("a", token=stage.step_functions.open())])
    stage.jobs.claim_outcome("a")
    stage.jobs.begin_callback("a", again_after_seconds=20)
    stage.reconciler.tick()
    assert not stage.step_functions.accepted
    stage.clock.advance(21)
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.COMPLETED


def test_a_job_that_does_not_move_is_failed(stage: Stage) -> None:
    """With a token and without (JB-17)."""
    stage.begin_sealed("a", token=stage.step_functions.open())
    stage.begin_sealed("b")
    stage.clock.advance(3601)
    stage.begin_sealed("c")
    stage.reconciler.tick()
    assert [stage.read_status(job_id) for job_id in "abc"] == [
        "FAILED",
        "FAILED",
        "DOWNLOADING",
    ]
    assert stage.list_event_types().count(ev.JobStalled) == 2
    assert stage.step_functions.accepted[0].error == "JobStalled"


def test_a_job_whose_token_closed_is_failed_when_no_other_came_in_time() -> None:
    """By any process, even if the one that noted it crashed."""
    stage = Stage(retry_grace_seconds=120.0)
    token = TaskToken("gone")
    stage.begin_sealed("a", token=token)
    stage.jobs.note_token_closed("a", token, JobError("TaskTimedOut", "not any more"))
    stage.clock.advance(119)
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.DOWNLOADING
    stage.clock.advance(1)
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.FAILED


def test_a_job_that_was_never_listed_to_its_end_stalls_too(stage: Stage) -> None:
    """It is PROCESSING, and the process that listed its tasks is gone (JB-39)."""
    stage.jobs.save(ExportJob.create("a", "e", "u", now=stage.clock.time()))
    stage.clock.advance(3601)
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.FAILED


def test_a_clock_that_is_set_forward_fails_nothing(stage: Stage) -> None:
    stage.begin_sealed("a")
    stage.reconciler.tick()
    stage.clock.step_time(7200)
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.DOWNLOADING


def test_without_a_stall_limit_no_job_is_failed() -> None:
    stage = Stage(stall_seconds=None)
    stage.begin_sealed("a")
    stage.clock.advance(1_000_000)
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.DOWNLOADING


def test_an_error_of_one_job_does_not_stop_the_pass(stage: Stage) -> None:
    for job_id in "ab":
        stage.jobs.record_results(job_id, [stage.begin_sealed(job_id)])
    claim = stage.jobs.claim_outcome

    def fail_for_a(job_id: str) -> ExportJob | None:
        if job_id == "a":
            raise StoreUnavailable("not this job")
        return claim(job_id)

    stage.jobs.claim_outcome = fail_for_a  # type: ignore[method-assign]
    stage.reconciler.tick()
    assert stage.read_status("b") is JobStatus.COMPLETED
    assert ev.JobNotReconciled("a", "StoreUnavailable") in stage.events


def test_a_store_that_does_not_respond_is_tried_again(stage: Stage) -> None:
    def fail(status: JobStatus) -> list[ExportJob]:
        raise StoreUnavailable("not now")

    find = stage.jobs.find_by_status
    stage.jobs.find_by_status = fail  # type: ignore[method-assign]
    stage.reconciler.tick()
    stage.reconciler.tick()
    assert stage.events == [
        ev.ActiveJobsUnknown("StoreUnavailable", 1),
        ev.ActiveJobsUnknown("StoreUnavailable", 2),
    ]
    stage.jobs.find_by_status = find  # type: ignore[method-assign]
    stage.jobs.record_results("a", [stage.begin_sealed("a")])
    stage.reconciler.tick()
    assert stage.read_status("a") is JobStatus.COMPLETED


def test_it_passes_at_once_and_then_every_interval_until_it_is_stopped() -> None:
    stage = Stage(interval_seconds=0.01)
    stage.jobs.record_results("a", [stage.begin_sealed("a")])
    stage.reconciler = Reconciler(stage.jobs, stage.tracker, interval_seconds=0.01)
    stage.reconciler.start()
    stage.reconciler.start()
    for _ in range(3000):
        if stage.read_status("a") is JobStatus.COMPLETED:
            break
        stage.reconciler._clock.sleep(0.01)
    stage.reconciler.stop()
    stage.reconciler.stop()
    assert stage.read_status("a") is JobStatus.COMPLETED
    job = stage.jobs.find_by_id("a")
    assert job is not None
    assert job.callback.state is CallbackState.SENT


class CountingJobs(MemoryJobs):
    """Counts the listings."""

    listings = 0

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        self.listings += 1
        return super().find_by_status(status)


def test_a_listing_of_the_heartbeats_is_used_for_one_interval() -> None:
    """Each listing reads every active job, so two components share one."""
    stage = Stage()
    jobs = CountingJobs(clock=stage.clock)
    stage.jobs = jobs
    lister = ActiveJobLister(
        jobs, Events(), stage.clock, stall_seconds=3600.0, interval_seconds=30.0
    )
    stage.reconciler = Reconciler(
        jobs,
        JobTracker(jobs, None),
        lister=lister,
        clock=stage.clock,
    )
    jobs.record_results("old", [stage.begin_sealed("old")])
    lister.list()
    stage.reconciler.tick()
    assert jobs.listings == len(ACTIVE)
    assert stage.read_status("old") is JobStatus.COMPLETED
    stage.clock.advance(30)  # the heartbeats were stopped
    stage.reconciler.tick()
    assert jobs.listings == 2 * len(ACTIVE)
