"""A job from its message to its outcome, in one process and one thread.

The pool does tasks at once, the store is in memory and Step Functions is simulated. What
happens if a process crashes on the way is in test_job_schedules.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Thread

import pytest

from holdfast.exports import events as ev
from holdfast.exports.errors import CallbackUnclear, InvalidJob, StoreUnavailable
from holdfast.exports.model import (
    ExportJob,
    JobError,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.exports.pool.worker import Assignment
from holdfast.exports.request import JobRequest, TaskSpec, build_tasks
from holdfast.exports.runner import JobRunner
from holdfast.exports.simulated_step_functions import (
    AcceptedCallback,
    TokenState,
)
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.testing import ManualClock
from support.exports.inline_pool import fail, succeed
from support.exports.stage import BoundedLease, JobStage
from support.waiting import wait_until


@dataclass
class FakeHeartbeats:
    """Notes the calls of the runner to the orchestrator."""

    sent: list[TaskToken | None] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def beat_now(self, job: ExportJob) -> None:
        self.calls.append("beat")
        self.sent.append(job.task_token)

    def forget(self, job_id: str) -> None:
        self.calls.append("forget")
        self.forgotten.append(job_id)


class Stage(JobStage):
    """A runner with a store in memory, a simulated Step Functions and an inline pool."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.heartbeats = FakeHeartbeats()
        self.listed: list[TaskSpec] = []
        self.runner = self.make_runner(self.heartbeats, lambda request: iter(self.listed))

    def run(self, request: JobRequest) -> ExportJob:
        """Run the job with a lease that is not lost."""
        return self.runner.run(request, lost=BoundedLease())

    def open_two(self) -> tuple[TaskToken, TaskToken]:
        """Open the tokens of two executions."""
        return self.step_functions.open(), self.step_functions.open()

    def list_outcomes(self) -> list[AcceptedCallback]:
        """Return the accepted callbacks that are not heartbeats."""
        return [sent for sent in self.step_functions.accepted if sent.kind != "heartbeat"]

    def list_sent(self) -> list[tuple[str, TaskToken]]:
        """Return the kind and the token of each outcome that was sent."""
        return [(sent.kind, sent.token) for sent in self.list_outcomes()]

    def list_kinds(self) -> list[str]:
        """Return "success" or "failure" for each outcome that was sent."""
        return [sent.kind for sent in self.list_outcomes()]


def make_request(
    *urls: str, token: TaskToken | None = None, job_id: str = "abc-123"
) -> JobRequest:
    """Make a request for these files."""
    specs = tuple(TaskSpec(url=url) for url in urls)
    return JobRequest(job_id, "export-456", "user-789", token, specs)


A, B, C = (f"https://files.example/{name}" for name in "abc")


@pytest.fixture
def stage() -> Iterator[Stage]:
    return Stage()


@pytest.mark.requirement(
    "R004-014",
    "R004-023",
    "R004-081",
    "R004-082",
    "R004-083",
    "R004-084",
    "R004-085",
    "R004-086",
    "R004-087",
    "R004-098",
    "R004-105",
    "R004-106",
)
def test_a_job_is_stored_and_processed_and_its_outcome_sent(stage: Stage) -> None:
    """PROCESSING first, a heartbeat before anything else."""
    token = stage.step_functions.open()
    job = stage.run(make_request(A, B, token=token))
    assert job.status is JobStatus.COMPLETED
    assert (job.export_id, job.user_id) == ("export-456", "user-789")
    assert job.state.completed_tasks == job.state.total_tasks == 2
    assert set(stage.heartbeats.sent) == {token}
    assert stage.heartbeats.forgotten == ["abc-123"]
    assert stage.list_kinds() == ["success"]
    assert [task.payload["s3Key"] for task in stage.pool.taken] != []


def test_a_heartbeat_is_sent_before_the_job_is_stored(stage: Stage) -> None:
    """(JB-19)"""
    token = stage.step_functions.open()

    def refuse(job: ExportJob) -> None:
        raise StoreUnavailable("not now")

    stage.jobs.save = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        stage.run(make_request(A, token=token))
    assert stage.heartbeats.sent == [token]


def test_the_list_is_looked_up_when_the_message_has_none(stage: Stage) -> None:
    stage.listed = [TaskSpec(url=A), TaskSpec(url=B, key="b.bin")]
    job = stage.run(JobRequest("abc-123", "export-456", "user-789"))
    assert job.state.completed_tasks == 2


def test_an_invalid_list_fails_the_job_with_the_reason(stage: Stage) -> None:
    """(JB-39)"""
    token = stage.step_functions.open()
    request = JobRequest(
        "abc-123", "e", "u", token, (TaskSpec(url=A, key="x"), TaskSpec(url=B, key="x"))
    )
    job = stage.run(request)
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "InvalidJob"
    assert "two files want the name 'x'" in job.error.message
    assert stage.list_kinds() == ["failure"]


def test_a_job_of_no_files_is_complete(stage: Stage) -> None:
    assert stage.run(make_request()).status is JobStatus.COMPLETED


def test_a_file_that_is_listed_twice_is_one_task(stage: Stage) -> None:
    assert stage.run(make_request(A, A, B)).state.total_tasks == 2


def test_two_files_of_one_name_get_different_keys(stage: Stage) -> None:
    stage.run(make_request("https://one.example/x.pdf", "https://two.example/x.pdf"))
    keys = {task.payload["s3Key"] for task in stage.pool.taken}
    assert len(keys) == 2
    assert "x.pdf" in keys


def test_the_same_message_again_does_no_task_again(stage: Stage) -> None:
    """A duplicate with the same token finds the token closed, which is fine (JB-14)."""
    token = stage.step_functions.open()
    stage.run(make_request(A, token=token))
    job = stage.run(make_request(A, token=token))
    assert job.status is JobStatus.COMPLETED
    assert len(stage.pool.taken) == 1
    assert stage.list_kinds() == ["success"]


@pytest.mark.parametrize("failing", [False, True])
def test_another_execution_of_a_finished_job_gets_its_outcome(
    stage: Stage, failing: bool
) -> None:
    """(JB-14)"""
    if failing:
        stage.pool.do = fail
    stage.run(make_request(A, token=stage.step_functions.open()))
    second = stage.step_functions.open()
    stage.run(make_request(A, token=second))
    assert len(stage.pool.taken) == 1
    assert stage.list_kinds() == ["failure" if failing else "success"] * 2
    assert stage.step_functions.state(second) is TokenState.CLOSED


def test_an_outcome_that_cannot_be_repeated_now_raises(stage: Stage) -> None:
    stage.run(make_request(A))
    stage.step_functions.down = True
    with pytest.raises(CallbackUnclear):
        stage.run(make_request(A, token=stage.step_functions.open()))


def test_another_execution_takes_a_running_job_over(stage: Stage) -> None:
    """The first execution is notified, and the counters stay (JB-14)."""
    first, second = stage.open_two()
    begin(stage, make_request(A, B, token=first), counted=1)
    job = stage.run(make_request(A, B, token=second))
    assert job.status is JobStatus.COMPLETED
    assert job.state.completed_tasks == 2
    assert len(stage.pool.taken) == 1
    sent = [(each.kind, each.token, each.error) for each in stage.list_outcomes()]
    assert sent == [("failure", first, "Superseded"), ("success", second, "")]


def test_a_message_that_is_sent_again_after_an_error_is_the_same_job(stage: Stage) -> None:
    """SQS accepted the first message, but its response was lost, so the state was retried.

    The first token is closed, because the retried state has another one.
    """
    first, second = stage.open_two()
    stage.step_functions.send_task_failure(first, "SQS.SdkClientException", "no response")
    begin(stage, make_request(A, B, token=first), 1)  # a process works on the first message
    job = stage.run(make_request(A, B, token=second))
    assert (job.status, job.state.completed_tasks) == (JobStatus.COMPLETED, 2)
    assert len(stage.pool.taken) == 1
    assert stage.list_sent()[1:] == [("success", second)]
    stage.tracker.token_closed(make_request(token=first).to_job(0.0), "TaskTimedOut")
    assert stage.read_job() == job  # a late heartbeat of the first changes nothing


def test_an_old_message_does_not_take_the_job_back(stage: Stage) -> None:
    """The execution was superseded, and its message is delivered again after a crash."""
    first, second = stage.open_two()
    begin(stage, make_request(A, B, token=first), counted=1)
    stage.jobs.attach_token("abc-123", second)
    stage.step_functions.send_task_failure(first, "Superseded", "")
    job = stage.run(make_request(A, B, token=first))
    assert job.status is JobStatus.COMPLETED
    assert stage.step_functions.state(second) is TokenState.CLOSED
    assert stage.list_kinds() == ["failure", "success"]


def test_an_execution_that_has_ended_takes_no_job_over(stage: Stage) -> None:
    """Its message was late, and the execution that still waits keeps the job."""
    stage.clock.auto_advance = True
    first, over = stage.open_two()
    stage.step_functions.send_task_failure(over, "Aborted", "by an operator")
    begin(stage, make_request(A, B, token=first), counted=1)
    stage.run(make_request(A, B, token=over))
    sent = [(each.kind, each.token) for each in stage.step_functions.accepted]
    assert sent == [("failure", over), ("success", first)]


def test_a_superseded_execution_is_notified_by_its_own_message(stage: Stage) -> None:
    """A process crashed between taking the job over and failing the old token."""
    first, second = stage.open_two()
    begin(stage, make_request(A, B, token=first), counted=1)
    stage.jobs.attach_token("abc-123", second)
    stage.run(make_request(A, B, token=first))
    sent = [(each.token, each.error) for each in stage.list_outcomes()]
    assert sent == [(first, "Superseded"), (second, "")]


def test_an_old_token_is_failed_after_the_row_has_the_new_one(stage: Stage) -> None:
    """A heartbeat in between would find the row's own token closed, and fail the job."""
    first, second = stage.open_two()
    begin(stage, make_request(A, B, token=first), counted=1)
    send_failure = stage.step_functions.send_task_failure
    rows: list[TaskToken | None] = []

    def note_row(token: TaskToken, error: str, cause: str) -> None:
        rows.append(stage.read_job().task_token)
        send_failure(token, error, cause)

    stage.step_functions.send_task_failure = note_row  # type: ignore[method-assign]
    stage.run(make_request(A, B, token=second))
    assert rows == [second]


def test_another_execution_has_the_job_before_its_message_gets_the_lock(stage: Stage) -> None:
    """The new token gets heartbeats while the first message's run goes on here."""
    first, second = stage.open_two()
    began, gate = hold_tasks(stage)
    runs = [
        Thread(target=stage.run, args=(make_request(A, token=token),))
        for token in (first, second)
    ]
    runs[0].start()
    assert began.wait(30)
    runs[1].start()
    wait_until(lambda: stage.step_functions.state(first) is TokenState.CLOSED)
    assert stage.read_job().task_token == second
    gate.set()
    for run in runs:
        run.join(30)
    assert stage.list_kinds() == ["failure", "success"]


def hold_tasks(stage: Stage) -> tuple[Flag, Flag]:
    """Let tasks wait, and return the flags that the first began and that all may end."""
    began, gate = Flag(), Flag()

    def slow(task: Assignment) -> TaskResult:
        began.set()
        assert gate.wait(30)
        return succeed(task)

    stage.pool.do = slow
    return began, gate


@pytest.mark.parametrize("waited_seconds", [0.7, 700.0])
def test_a_retried_execution_goes_on_with_the_job_in_the_middle_of_its_download(
    stage: Stage, waited_seconds: float
) -> None:
    """The new token comes soon after the old one closed, or after the job failed for it."""
    first = stage.step_functions.open(heartbeat_seconds=90)
    began, gate = hold_tasks(stage)
    run = Thread(target=stage.run, args=(make_request(A, B, token=first),))
    run.start()
    assert began.wait(30)
    stage.clock.advance(90)
    stage.tracker.token_closed(stage.read_job(), "TaskTimedOut")
    stage.clock.advance(waited_seconds)
    if stage.tracker.fail_closed(stage.read_job(), 600.0).terminal:
        stage.dispatcher.cancel("abc-123")
    second = stage.step_functions.open(heartbeat_seconds=90)
    retried = Thread(target=stage.run, args=(make_request(A, B, token=second),))
    retried.start()
    wait_until(lambda: stage.heartbeats.sent.count(second) == 2)
    assert stage.read_job().task_token == second
    assert stage.read_job().status is JobStatus.DOWNLOADING
    # As it was requested and as it is stored, because only that has the token's generation.
    assert stage.heartbeats.sent[-2:] == [second, second]
    gate.set()
    for thread in (run, retried):
        thread.join(30)
    job = stage.read_job()
    assert (job.status, job.state.completed_tasks) == (JobStatus.COMPLETED, 2)
    assert stage.list_sent() == [("success", second)]


def test_a_job_that_failed_for_its_token_reports_to_the_next_one_without_work(
    stage: Stage,
) -> None:
    """Every file was done. The message with the closed token is delivered again, too."""
    first = stage.step_functions.open(timeout_seconds=60)
    request = make_request(A, B, token=first)
    begin(stage, request, counted=2)
    stage.clock.advance(61)
    stage.tracker.complete("abc-123")
    assert stage.tracker.complete("abc-123").status is JobStatus.FAILED
    assert stage.run(request).status is JobStatus.FAILED
    second, third = stage.open_two()
    assert stage.run(make_request(A, B, token=second)).status is JobStatus.COMPLETED
    stage.run(make_request(A, B, token=third))
    assert stage.list_sent() == [("success", second), ("success", third)]
    assert stage.pool.taken == []


def test_a_single_refusal_of_a_new_token_does_not_leave_its_execution_waiting() -> None:
    stage = Stage(ManualClock(auto_advance=True))
    first, second = stage.step_functions.open(timeout_seconds=60), stage.step_functions.open()
    begin(stage, make_request(A, B, token=first), counted=1)
    stage.step_functions.deny(1)
    stage.run(make_request(A, B, token=second))
    sent = [(each.token, each.error) for each in stage.list_outcomes()]
    assert sent == [(first, "Superseded"), (second, "")]


def begin(stage: Stage, request: JobRequest, counted: int, *, sealed: bool = True) -> None:
    """Store a job as a process left it that crashed after so many results."""
    assert request.tasks is not None
    tasks = list(build_tasks(request.job_id, request.tasks))
    stage.jobs.save(request.to_job(stage.clock.time()))
    stage.jobs.add_tasks(request.job_id, tasks)
    stage.jobs.update_job_status(request.job_id, JobStatus.DOWNLOADING)
    if sealed:
        stage.jobs.set_total_tasks(request.job_id, len(tasks))
    results = [TaskResult(request.job_id, task.task_id, True) for task in tasks[:counted]]
    stage.jobs.record_results(request.job_id, results)


@pytest.mark.requirement("R004-048")
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("counted", [0, 1, 2, 3])
def test_a_job_goes_on_where_a_process_crashed(
    stage: Stage, counted: int, sealed: bool
) -> None:
    """Tasks that are counted are not done again (JB-06, JB-15, JB-16)."""
    request = make_request(A, B, C, token=stage.step_functions.open())
    begin(stage, request, counted, sealed=sealed)
    job = stage.run(request)
    assert job.status is JobStatus.COMPLETED
    assert job.state.completed_tasks == job.state.total_tasks == 3
    assert len(stage.pool.taken) == 3 - counted
    assert stage.list_kinds() == ["success"]
    assert [type(event) for event in stage.events].count(ev.JobResumed) == 1


def test_tasks_of_an_older_list_are_part_of_the_job_too(stage: Stage) -> None:
    """A process stored tasks and crashed, and the list changed before the seal."""
    begin(stage, make_request(A, B), 0, sealed=False)
    job = stage.run(make_request(B, C))
    assert job.state.completed_tasks == job.state.total_tasks == 3


def test_a_job_that_waited_for_its_message_is_not_stalled(stage: Stage) -> None:
    request = make_request(A)
    begin(stage, request, 0)
    stage.clock.advance(10_000)
    stage.pool.do = lambda task: None
    stop = Flag()
    run = Thread(target=stage.runner.run, args=(request,), kwargs={"lost": stop})
    run.start()
    try:
        wait_until(lambda: stage.pool.taken)
        assert stage.read_job().last_progress_at == stage.clock.time()
    finally:
        stop.set()
        run.join()


def test_a_lost_lease_ends_the_work_at_once(stage: Stage) -> None:
    stage.pool.do = lambda task: None
    lost = Flag()
    lost.set()
    job = stage.runner.run(make_request(A), lost=lost)
    assert not job.terminal


def test_running_tasks_are_stopped_when_the_lease_is_lost(stage: Stage) -> None:
    lost = Flag()

    def never(task: Assignment) -> None:
        lost.set()

    stage.pool.do = never
    job = stage.runner.run(make_request(A), lost=lost)
    assert not job.terminal
    assert stage.pool.cancelled == ["abc-123"]
    assert stage.dispatcher.running == []


def test_a_second_message_of_a_running_job_waits_for_the_first(stage: Stage) -> None:
    """The second run finds the job done, and has no token to repeat the outcome to."""
    began, gate = hold_tasks(stage)
    jobs: list[ExportJob] = []
    runs = [Thread(target=lambda: jobs.append(stage.run(make_request(A)))) for _ in range(2)]
    runs[0].start()
    assert began.wait(30)
    runs[1].start()
    gate.set()
    for run in runs:
        run.join(30)
    assert [job.status for job in jobs] == [JobStatus.COMPLETED] * 2
    assert len(stage.pool.taken) == 1


def test_a_job_is_beaten_for_with_the_token_of_its_row(stage: Stage) -> None:
    """Other processes send no heartbeats for it, because it makes progress here."""
    token = stage.step_functions.open()
    begin(stage, make_request(A, B, token=token), 1)
    stage.run(make_request(A, B))  # the message was sent again by hand, without a token
    assert stage.heartbeats.sent == [token]


def test_a_run_that_ends_does_not_end_the_heartbeats_of_another_run(stage: Stage) -> None:
    """The same message is received again while its first run ends."""
    stage.pool.do = lambda task: None  # never ends
    request = make_request(A, token=stage.step_functions.open())
    losses = [Flag() for _ in range(3)]
    runs = [
        Thread(target=stage.runner.run, args=(request,), kwargs={"lost": lost}, daemon=True)
        for lost in losses
    ]
    for run in runs:
        run.start()
        wait_until(lambda: stage.pool.taken)
    losses[2].set()  # gives up while it waits for the first run
    runs[2].join(30)
    assert stage.heartbeats.calls[-1] == "beat"
    losses[0].set()
    runs[0].join(30)
    wait_until(lambda: len(stage.pool.taken) == 2)
    assert stage.heartbeats.calls[-1] == "beat"
    losses[1].set()
    runs[1].join(30)
    assert stage.heartbeats.calls[-1] == "forget"


def test_an_outcome_is_sent_again_until_it_is_accepted() -> None:
    """The message is held until then (JB-08)."""
    stage = Stage(SYSTEM_CLOCK)
    stage.step_functions.throttle(2)
    job = stage.run(make_request(A, token=stage.step_functions.open()))
    assert job.status is JobStatus.COMPLETED
    assert stage.list_kinds() == ["success"]


def test_a_token_is_refused_without_step_functions(stage: Stage) -> None:
    runner = JobRunner(
        stage.jobs, stage.tracker, stage.dispatcher, stage.heartbeats, lambda request: iter(())
    )
    with pytest.raises(InvalidJob, match="Step Functions is not configured"):
        runner.run(make_request(A, token=TaskToken("t")), lost=Flag())


def test_a_job_that_is_cancelled_while_it_runs_ends_as_the_store_says(stage: Stage) -> None:
    """(JB-13)"""

    def cancel_job(task: Assignment) -> None:
        stage.tracker.fail("abc-123", JobError("TaskTimedOut", "too late"))
        stage.dispatcher.cancel("abc-123")

    stage.pool.do = cancel_job
    job = stage.run(make_request(A, B))
    assert job.status is JobStatus.FAILED
    assert len(stage.pool.taken) == 1
    assert stage.pool.cancelled != []
