"""Events of jobs as log lines and as metrics: ."""

import logging
from dataclasses import fields
from typing import Any

import prometheus_client
import pytest

from holdfast.events import Event
from holdfast.exports import events as ev
from holdfast.queue.event_log import get_event_name
from holdfast.telemetry.logging import make_line_log
from holdfast.telemetry.prometheus import Metrics

KINDS = [
    kind
    for kind in vars(ev).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind not in (Event, ev.JobEvent)
]
SAMPLES: dict[str, Any] = {"str": "x", "int": 1, "float": 0.5, "bool": True, "str | None": None}


def make_event(kind: type[Event]) -> Event:
    return kind(*(SAMPLES[getattr(f.type, "__name__", str(f.type))] for f in fields(kind)))


class Counted:
    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = Metrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"holdfast_{name}", labels)


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.mark.requirement("R004-271")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_event_of_jobs_is_logged_and_counted_without_an_error(
    kind: type[Event], counted: Counted
) -> None:
    lines: list[str] = []
    event = make_event(kind)
    make_line_log(lines.append, min_level=logging.DEBUG)(event)
    counted.metrics(event)
    assert f"event={get_event_name(event)}" in lines[0]


@pytest.mark.requirement("R004-222", "R004-224", "R004-225", "R004-226")
def test_sent_heartbeats_are_the_accepted_plus_the_failed_ones(counted: Counted) -> None:
    """(I-JB-9)."""
    for _ in range(3):
        counted.metrics(ev.HeartbeatSent("j", 1, 2, 50, 0.02))
    counted.metrics(ev.HeartbeatFailed("j", "ThrottlingException", 0.01))
    assert counted.value("heartbeat_success_total") == 3
    assert counted.value("heartbeat_failure_total") == 1
    assert counted.value("heartbeat_sent_total") == 4


@pytest.mark.requirement("R004-227", "R004-232")
def test_durations_are_in_milliseconds_with_a_bucket_at_five_seconds(counted: Counted) -> None:
    """The alarm is on 5000."""
    counted.metrics(ev.HeartbeatSent("j", 0, 0, 0, 0.020))
    counted.metrics(ev.HeartbeatFailed("j", "CallbackUnclear", 5.1))
    assert counted.value("heartbeat_duration_ms_count") == 2
    assert counted.value("heartbeat_duration_ms_sum") == pytest.approx(5120)
    assert counted.value("heartbeat_duration_ms_bucket", le="25.0") == 1
    assert counted.value("heartbeat_duration_ms_bucket", le="5000.0") == 1


@pytest.mark.requirement("R004-228", "R004-229")
def test_gauges_show_the_last_cycle(counted: Counted) -> None:
    counted.metrics(ev.ActiveJobs(with_token=7, without_token=2))
    counted.metrics(ev.ActiveJobs(with_token=3, without_token=0))
    assert counted.value("jobs_active_with_token") == 3
    assert counted.value("jobs_active_without_token") == 0


def test_jobs_and_tasks_are_counted_by_how_they_ended(counted: Counted) -> None:
    counted.metrics(ev.JobFinished("a", "COMPLETED", 2, 0, None))
    counted.metrics(ev.JobFinished("b", "FAILED", 1, 1, "JobCompletedWithFailures"))
    counted.metrics(ev.TaskCompleted("a", "t", 100))
    counted.metrics(ev.TaskFailed("b", "t", "NotFound"))
    counted.metrics(ev.PoolWorkerEnded(12, "killed"))
    assert counted.value("jobs_finished_total", status="COMPLETED") == 1
    assert counted.value("jobs_finished_total", status="FAILED") == 1
    assert counted.value("tasks_completed_total") == counted.value("tasks_failed_total") == 1
    assert counted.value("pool_workers_ended_total") == 1


@pytest.mark.requirement("R004-231")
def test_a_timeout_of_step_functions_is_counted_for_the_alarm(counted: Counted) -> None:
    assert counted.value("stepfunctions_timeout_total") == 0
    counted.metrics(ev.StepFunctionsTimedOut("j", "TaskTimedOut"))
    assert counted.value("stepfunctions_timeout_total") == 1


@pytest.mark.requirement(
    "R004-090", "R004-110", "R004-145", "R004-146", "R004-148", "R004-154", "R004-265"
)
@pytest.mark.parametrize(
    ("event", "level"),
    [
        (ev.HeartbeatSent("j", 1, 2, 50, 0.0), logging.DEBUG),  # R004-095, R004-152
        (ev.HeartbeatFailed("j", "x", 0.0), logging.WARNING),
        (ev.OrchestratorDisabled(), logging.WARNING),  # R004-265
        (ev.OrchestratorStarted(30.0), logging.INFO),  # R004-090
        (ev.ActiveJobsUnknown("StoreUnavailable", 1), logging.ERROR),  # R004-148
        (ev.ActiveJobs(0, 4), logging.DEBUG),  # R004-145
        (ev.ActiveJobs(1, 0), logging.INFO),  # R004-146
        (ev.TaskCompleted("j", "t", 1), logging.INFO),  # R004-110
        (ev.TaskFailed("j", "t", "x"), logging.WARNING),  # R004-112
        (ev.StepFunctionsTimedOut("j", "TaskTimedOut"), logging.ERROR),  # R004-154
        (ev.JobStalled("j", 3601.0), logging.ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Event) else str(value),
)
def test_each_event_of_jobs_has_its_log_level(event: Event, level: int) -> None:
    assert event.get_level() == level


@pytest.mark.requirement("R004-095", "R004-152")
def test_a_heartbeat_line_shows_the_progress() -> None:
    lines: list[str] = []
    make_line_log(lines.append, min_level=logging.DEBUG)(
        ev.HeartbeatSent("j1", 3, 4, 75, 0.0123)
    )
    assert "job_id=j1 completed_tasks=3 total_tasks=4 percent=75 seconds=0.012" in lines[0]
