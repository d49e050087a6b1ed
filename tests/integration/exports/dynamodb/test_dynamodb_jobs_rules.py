"""DynamoDBJobs: every call has the effect of its rule.

Each call is made to a job in each state, on DynamoDB and in memory, where the rules are applied
directly. Both must return the same, refuse with the same text, and leave the same job.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

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
    new = make_job(ManualClock())
    working = replace(new, state=JobState(JobStatus.DOWNLOADING))
    sealed = replace(
        working, state=JobState(JobStatus.DOWNLOADING, 2, 1, 0), sealed=True, remaining_tasks=1
    )
    counted = replace(sealed, state=COUNTED, remaining_tasks=0)
    failed = replace(counted, state=JobState(JobStatus.DOWNLOADING, 2, 1, 1))
    decided = replace(counted, callback=PENDING)
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
    jobs = {
        "new": new,
        "working": working,
        "working before the seal": replace(working, remaining_tasks=-1),
        "sealed": sealed,
        "all counted": counted,
        "counted with failures": failed,
        "sealed without tasks": replace(working, sealed=True),
        "decided": decided,
        "given up before it began": replace(
            new, callback=Callback(CallbackState.PENDING, JobStatus.FAILED, STALLED)
        ),
        "attempted": replace(decided, callback=begun),
        "ended": ended,
        "waiting for a token": replace(sealed, error=CLOSED, token_closed_at=START),
        "waiting for a token, all counted": replace(
            counted, error=CLOSED, token_closed_at=START
        ),
        "given up for its token": replace(
            new,
            error=CLOSED,
            token_closed_at=START,
            callback=Callback(CallbackState.PENDING, JobStatus.FAILED, CLOSED, 1, True, START),
        ),
        "failed for its token": replace(
            ended,
            state=replace(COUNTED, status=JobStatus.FAILED),
            callback=replace(sent, status=JobStatus.FAILED, error=CLOSED),
            error=CLOSED,
        ),
        "failed for another reason": replace(
            ended,
            state=replace(COUNTED, status=JobStatus.FAILED),
            callback=replace(sent, status=JobStatus.FAILED, error=STALLED),
            error=STALLED,
        ),
    }
    without_token = {
        f"{name}, without a token": replace(job, task_token=None, seen_tokens=frozenset())
        for name, job in jobs.items()
        if name in ("new", "all counted", "counted with failures", "decided")
    }
    return jobs | without_token


JOBS = _make_jobs()
CALLS: dict[str, Callable[[JobStateRepository], Any]] = {
    **{
        f"move to {status}": lambda jobs, status=status: jobs.update_job_status("job", status)
        for status in JobStatus
    },
    "fail with an error": lambda jobs: jobs.update_job_status("job", JobStatus.FAILED, STALLED),
    "move with old counters": lambda jobs: jobs.update_job_state("job", JobState()),
    "move with other counters": lambda jobs: jobs.update_job_state(
        "job", JobState(JobStatus.DOWNLOADING, 9)
    ),
    "move with counters": lambda jobs: jobs.update_job_state(
        "job", replace(COUNTED, status=JobStatus.COMPLETED)
    ),
    "count one": lambda jobs: jobs.increment_completed_tasks("job"),
    "count nothing": lambda jobs: jobs.record_results("job", []),
    "seal": lambda jobs: jobs.set_total_tasks("job", 2),
    "seal with another number": lambda jobs: jobs.set_total_tasks("job", 0),
    "list nothing": lambda jobs: jobs.add_tasks("job", []),
    "progress": lambda jobs: jobs.note_progress("job"),
    "claim": lambda jobs: jobs.claim_outcome("job"),
    "give up": lambda jobs: jobs.give_up("job", JobError("Abandoned", "by its last attempt")),
    "begin at once": lambda jobs: jobs.begin_callback("job", again_after_seconds=60.0),
    "begin later": lambda jobs: jobs.begin_callback("job", again_after_seconds=10.0),
    "end in doubt": lambda jobs: jobs.end_callback("job", in_doubt=True),
    "end": lambda jobs: jobs.end_callback("job", in_doubt=False),
    "settle": lambda jobs: jobs.settle("job", JobStatus.COMPLETED, None),
    "settle as failed": lambda jobs: jobs.settle("job", JobStatus.FAILED, STALLED),
    "attach its own token": lambda jobs: jobs.attach_token(
        "job", JOBS["new"].task_token or TaskToken("")
    ),
    "settle for another token": lambda jobs: jobs.settle(
        "job", JobStatus.FAILED, STALLED, generation=1
    ),
    "end for another token": lambda jobs: jobs.end_callback(
        "job", in_doubt=False, generation=1
    ),
    "note its own token closed": lambda jobs: jobs.note_token_closed(
        "job", JOBS["new"].task_token or TaskToken(""), CLOSED
    ),
    "note another token closed": lambda jobs: jobs.note_token_closed(
        "job", TaskToken("other"), CLOSED
    ),
    "give up closed": lambda jobs: jobs.give_up_closed("job", grace_seconds=10.0),
    "give up closed later": lambda jobs: jobs.give_up_closed("job", grace_seconds=60.0),
    "attach another token": lambda jobs: jobs.attach_token("job", TaskToken("other")),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_effect_of_its_rule_in_every_state_of_the_job(
    store: Store, name: str
) -> None:
    store.clock.advance(30.0)
    jobs = store.open(store.client, keep_seconds=60.0)
    for state, job in JOBS.items():
        model = MemoryJobs(clock=store.clock, keep_seconds=60.0)
        put_job(store.client, job)
        model.save(job)
        assert _call(jobs, CALLS[name]) == _call(model, CALLS[name]), state
        stored, expected = jobs.find_by_id("job"), model.find_by_id("job")
        if name == "list nothing":  # only this call may move `updated_at` or not
            assert stored is not None
            assert expected is not None
            stored = replace(stored, updated_at=expected.updated_at)
        assert stored == expected, state


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
