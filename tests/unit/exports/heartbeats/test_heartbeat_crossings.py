"""Heartbeats that cross the outcome of their own job are not failures.

(JB-46).
"""

import prometheus_client
import pytest

from holdfast.exports import events as ev
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.model import ExportJob, JobStatus, TaskResult, TaskToken
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from holdfast.exports.tracker import JobTracker
from holdfast.telemetry.prometheus import Metrics
from holdfast.testing import ManualClock
from support.exports.simulated_step_functions import SimulatedStepFunctions, TokenState
from support.exports.stage import JOB, JobStage

MANY = 110


class Crossing(SimulatedStepFunctions):
    """Each heartbeat arrives after the outcome of its job, which was sent at the same time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.finish_first: dict[TaskToken, TaskResult] = {}
        self.tracker: JobTracker

    def send_task_heartbeat(self, token: TaskToken) -> None:
        if (result := self.finish_first.pop(token, None)) is not None:
            self.tracker.count(result.job_id, [result])
        super().send_task_heartbeat(token)


class Stage(JobStage):
    """A tracker and an orchestrator over one store, with metrics."""

    def __init__(self) -> None:
        super().__init__(step_functions=Crossing)
        self.registry = prometheus_client.CollectorRegistry()
        self.observed.subscribe(Metrics(self.registry))
        self.step_functions.tracker = self.tracker
        self.orchestrator = HeartbeatOrchestrator(
            self.jobs,
            self.step_functions,
            token_closed=self.tracker.token_closed,
            events=self.observed,
            clock=self.clock,
        )

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
        tokens.append(token := stage.step_functions.open())
        result = stage.begin_sealed(f"job{number}", token=token)
        stage.step_functions.finish_first[token] = result
    assert stage.orchestrator.trigger_heartbeat() == MANY
    stage.orchestrator.stop()
    assert {stage.step_functions.state(token) for token in tokens} == {TokenState.CLOSED}
    assert len(stage.jobs.find_by_status(JobStatus.COMPLETED)) == MANY
    assert stage.count_failures() == stage.count_sent() == 0
    assert [event for event in stage.events if event.get_level() >= 30] == []


def test_a_heartbeat_that_crosses_an_outcome_without_a_response_is_not_a_failure(
    stage: Stage,
) -> None:
    """The outcome is decided and sent, and only the response to that was lost."""
    token = stage.step_functions.open()
    stage.step_functions.finish_first[token] = stage.begin_sealed(token=token)
    stage.step_functions.lose_replies(1)
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.count_failures() == 0


def test_a_heartbeat_of_a_token_that_is_replaced_meanwhile_is_not_a_failure(
    stage: Stage,
) -> None:
    stage.begin_sealed(token=TaskToken("old"))
    new, send = stage.step_functions.open(), stage.step_functions.send_task_heartbeat

    def replace_first(token: TaskToken) -> None:
        stage.jobs.attach_token(JOB, new)
        send(token)

    stage.step_functions.send_task_heartbeat = replace_first  # type: ignore[method-assign]
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.count_failures() == 0


def test_a_token_that_was_lost_is_a_failure_until_that_is_noted(stage: Stage) -> None:
    """The second refusal confirms the first, and then the token gets no more heartbeats."""
    stage.begin_sealed(token=TaskToken("foreign"))
    for _ in range(4):
        stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.count_failures() == stage.count_sent() == stage.step_functions.calls == 2
    failed = [event for event in stage.events if isinstance(event, ev.HeartbeatFailed)]
    assert [(event.job_id, event.code) for event in failed] == [(JOB, "InvalidToken")] * 2


def test_a_refusal_that_the_store_cannot_explain_is_a_failure(stage: Stage) -> None:
    def fail(job_id: str) -> ExportJob | None:
        raise StoreUnavailable("not now")

    stage.begin_sealed(token=TaskToken("foreign"))
    stage.jobs.find_by_id = fail  # type: ignore[method-assign]
    stage.orchestrator.trigger_heartbeat()
    stage.orchestrator.stop()
    assert stage.count_failures() == 1
