"""DynamoDBJobs: a rule is applied to the row as it is when it is written, whatever was read."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.exports.model import (
    Callback,
    CallbackState,
    ExportJob,
    JobError,
    JobState,
    JobStatus,
    TaskToken,
)
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.testing import ManualClock
from support.dynamodb.faults import InterleavingClient
from support.dynamodb.jobs import STALLED, make_job, put_job
from support.exports.dynamodb_store import Store

START = ManualClock().time()
COUNTED = JobState(JobStatus.DOWNLOADING, 2, 2, 0)
PENDING = Callback(CallbackState.PENDING, JobStatus.COMPLETED)
CLOSED = JobError("TaskTokenInvalid", "Step Functions does not wait for this job any more")


def _make_jobs() -> dict[str, ExportJob]:
    working = replace(make_job(ManualClock()), state=JobState(JobStatus.DOWNLOADING))
    counted = replace(working, state=COUNTED, sealed=True)
    begun = replace(PENDING, attempts=1, in_doubt=True, attempted_at=START)
    sent = replace(PENDING, state=CallbackState.SENT, attempts=1)
    ended = replace(
        counted,
        state=replace(COUNTED, status=JobStatus.COMPLETED),
        task_token=None,
        callback=sent,
        completed_at=START,
        ttl=int(START) + 5,
    )
    failed = {
        f"failed with {error.code}": replace(
            ended,
            state=replace(COUNTED, status=JobStatus.FAILED),
            callback=replace(sent, status=JobStatus.FAILED, error=error),
            error=error,
        )
        for error in (CLOSED, STALLED)
    }
    return {
        "working": working,
        "all counted": counted,
        "decided": replace(counted, callback=PENDING),
        "attempted": replace(counted, callback=begun),
        "ended": ended,
        "waiting for a token": replace(counted, error=CLOSED, token_closed_at=START),
        **failed,
    }


JOBS = _make_jobs()


def _call(jobs: JobStateRepository, call: Callable[[JobStateRepository], Any]) -> object:
    """Return what the call returns, or its error."""
    try:
        return call(jobs)
    except Exception as error:
        return type(error), str(error)


def test_a_job_that_changes_before_it_gets_its_token_is_judged_as_it_is_then(
    store: Store,
) -> None:
    """It was read, and another service changes it before the write."""

    def attach(jobs: JobStateRepository) -> ExportJob:
        return jobs.attach_token("job", TaskToken("other"))

    for state, job in JOBS.items():
        put_job(store.client, JOBS["working"])
        change_first = InterleavingClient(store.client, partial(put_job, store.client, job))
        model = MemoryJobs(clock=store.clock)
        model.save(job)
        assert _call(store.open(change_first), attach) == _call(model, attach), state
        assert store.jobs.find_by_id("job") == model.find_by_id("job"), state
