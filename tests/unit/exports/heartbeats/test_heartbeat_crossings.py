"""Heartbeats that cross the outcome of their own job are not failures.

(JB-46).
"""

from dataclasses import dataclass, field

import prometheus_client
import pytest

from holdfast.events import Event, Events
from holdfast.exports import events as ev
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.heartbeats.orchestrator import HeartbeatOrchestrator
from holdfast.exports.model import ExportJob, ExportTask, JobStatus, TaskResult, TaskToken
from holdfast.exports.simulated_step_functions import SimulatedStepFunctions, TokenState
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.exports.tracker import JobTracker
from holdfast.telemetry.prometheus import Metrics
from holdfast.testing import ManualClock

MANY = 110


class Crossing(SimulatedStepFunctions):
    """Each heartbeat arrives after the outcome of its job, which was sent at the same time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.finish_first: dict[TaskToken, ExportTask] = {}
        self.tracker: JobTracker

    def send_task_heartbeat(self, token: TaskToken) -> None:
        if (task := self.finish_first.pop(token, None)) is not None:
            self.tracker.count(task.job_id, [TaskResult(task.job_id, task.task_id, True, 1)])
        super().send_task_heartbeat(token)


@dataclass
class Stage:
    """A tracker and an orchestrator over one store, with metrics."""

    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.registry = prometheus_client.CollectorRegistry()
        events = Events(self.events.append, Metrics(self.registry))
        self.jobs = MemoryJobs(clock=self.clock)
        self.service = Crossing(self.clock)
        self.tracker = self.service.tracker = JobTracker(self.jobs, self.service, events=events)
        self.orchestrator = HeartbeatOrchestrator(
            self.jobs,
            self.service,
            token_closed=self.tracker.token_closed,
            events=events,
            clock=self.clock,
        )

    def begin(self, job_id: str, token: TaskToken) -> ExportTask:
        """Store a job with one task, and return the task."""
        now = self.clock.time()
        self.jobs.save(ExportJob.create(job_id, "export", "user", task_token=token, now=now))
        task = ExportTask.create(job_id, "https://files.example/a", "a")
        self.jobs.add_tasks(job_id, [task])
        self.jobs.update_job_status(job_id, JobStatus.DOWNLOADING)
        self.tracker.seal(job_id, 1)
        return task

    def count_failures(self) -> float:
        """Return the metric of failed heartbeats."""
        return self.registry.get_sample_value("holdfast_heartbeat_failure_total") or 0.0

    def count_sent(self) -> float:
        """Return the metric of sent heartbeats."""
        return self.registry.get_sample_value("holdfast_heartbeat_sent_total") or 0.0


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_heartbeats_that_cross_the_outcome_of_their_job_are_not_failures(stage: Stage) -> None:
    tokens = []
    for number in range(MANY):
        tokens.append(token := stage.service.open())
        stage.service.finish_first[token] = stage.begin(f"job{number}", token)
    assert stage.orchestrator.trigger_heartbeat() == MANY
    stage.orchestrator.stop()
    assert {stage.service.state(token) for token in tokens} == {TokenState.CLOSED}
    assert len(stage.jobs.find_by_status(JobStatus.COMPLETED)) == MANY
    assert stage.count_failures() == stage.count_sent() == 0
    assert [event for event in stage.events if event.get_level() >= 30] == []


def test_a_heartbeat_of_a_token_that_is_replaced_meanwhile_is_not_a_failure(
    stage: Stage,
) -> None:
    stage.begin("job", TaskToken("old"))
    new, send = stage.service.open(), stage.service.send_task_heartbeat

    def replace_first(token: TaskToken) -> None:
        stage.jobs.attach_token("job", new)
        send(token)

    stage.service.send_task_heartbeat = replace_first  # type: ignore[method-assign]
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.count_failures() == 0


def test_a_token_that_was_lost_is_a_failure_until_that_is_noted(stage: Stage) -> None:
    """The second refusal confirms the first, and then the token gets no more heartbeats."""
    stage.begin("job", TaskToken("foreign"))
    for _ in range(4):
        stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.count_failures() == stage.count_sent() == stage.service.calls == 2
    failed = [event for event in stage.events if isinstance(event, ev.HeartbeatFailed)]
    assert [(event.job_id, event.code) for event in failed] == [("job", "InvalidToken")] * 2


def test_a_refusal_that_the_store_cannot_explain_is_a_failure(stage: Stage) -> None:
    def fail(job_id: str) -> ExportJob | None:
        raise StoreUnavailable("not now")

    stage.begin("job", TaskToken("foreign"))
    stage.jobs.find_by_id = fail  # type: ignore[method-assign]
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.count_failures() == 1
