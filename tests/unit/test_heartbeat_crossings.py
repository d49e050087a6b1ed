"""Beats that cross the answer of their own job: no failure, no alarm. R004-222…226, JB-46."""

from dataclasses import dataclass, field

import prometheus_client
import pytest

from holdfast.adapters.observe.logging import level_of
from holdfast.adapters.observe.metrics import Metrics
from holdfast.core.events import Event, Events
from holdfast.jobs import events as ev
from holdfast.jobs.errors import StoreUnavailable
from holdfast.jobs.heartbeats.orchestrator import HeartbeatOrchestrator
from holdfast.jobs.model import ExportJob, ExportTask, JobStatus, TaskResult, TaskToken
from holdfast.jobs.tracker import JobTracker
from holdfast.testing import ManualClock
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs
from holdfast.testing.stepfunctions import SimulatedStepFunctions, TokenState

MANY = 110


class Crossing(SimulatedStepFunctions):
    """Each beat arrives after the answer of its job, which was sent at the same time."""

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
    told: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.registry = prometheus_client.CollectorRegistry()
        events = Events(self.told.append, Metrics(self.registry))
        self.jobs = MemoryJobs(JobMemory(), self.clock)
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
        now = self.clock.time()
        self.jobs.save(ExportJob.create(job_id, "export", "user", task_token=token, now=now))
        task = ExportTask.of(job_id, "https://files.example/a", "a")
        self.jobs.add_tasks(job_id, [task])
        self.jobs.update_job_status(job_id, JobStatus.DOWNLOADING)
        self.tracker.seal(job_id, 1)
        return task

    def failures(self) -> float:
        return self.registry.get_sample_value("holdfast_heartbeat_failure_total") or 0.0

    def sent(self) -> float:
        return self.registry.get_sample_value("holdfast_heartbeat_sent_total") or 0.0


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_beats_that_cross_the_answers_of_their_jobs_are_not_failures(stage: Stage) -> None:
    tokens = []
    for number in range(MANY):
        tokens.append(token := stage.service.open())
        stage.service.finish_first[token] = stage.begin(f"job{number}", token)
    assert stage.orchestrator.trigger_heartbeat() == MANY
    stage.orchestrator.stop()
    assert {stage.service.state(token) for token in tokens} == {TokenState.CLOSED}
    assert len(stage.jobs.find_by_status(JobStatus.COMPLETED)) == MANY
    assert stage.failures() == stage.sent() == 0
    assert [event for event in stage.told if level_of(event) >= 30] == []


def test_a_beat_that_crosses_an_answer_without_a_reply_is_not_a_failure(stage: Stage) -> None:
    """Its outcome is decided and told, and only the reply to that was lost."""
    token = stage.service.open()
    stage.service.finish_first[token] = stage.begin("job", token)
    stage.service.lose_replies(1)
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.failures() == 0


def test_a_beat_of_a_token_that_is_replaced_meanwhile_is_not_a_failure(stage: Stage) -> None:
    stage.begin("job", TaskToken("old"))
    new, beat = stage.service.open(), stage.service.send_task_heartbeat

    def replaced_first(token: TaskToken) -> None:
        stage.jobs.attach_token("job", new)
        beat(token)

    stage.service.send_task_heartbeat = replaced_first  # type: ignore[method-assign]
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.failures() == 0


def test_a_token_that_was_lost_is_a_failure_once(stage: Stage) -> None:
    stage.begin("job", TaskToken("foreign"))
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.failures() == stage.sent() == 1
    [failed] = [event for event in stage.told if isinstance(event, ev.HeartbeatFailed)]
    assert (failed.job_id, failed.code) == ("job", "InvalidToken")


def test_a_refusal_that_the_store_cannot_explain_is_a_failure(stage: Stage) -> None:
    def away(job_id: str) -> ExportJob | None:
        raise StoreUnavailable("away")

    stage.begin("job", TaskToken("foreign"))
    stage.jobs.find_by_id = away  # type: ignore[method-assign]
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.failures() == 1
