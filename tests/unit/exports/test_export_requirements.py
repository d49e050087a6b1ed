"""The parts of seed 004 that no other test of jobs covers: values, messages, logs.

In tests/integration/exports are the load tests (test_export_load.py) and those that need
processes (test_export_structure.py and test_export_whole_service.py).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event as Flag

import pytest

from holdfast.events import Event, Events
from holdfast.exports import events as ev
from holdfast.exports.errors import CallbackRefused
from holdfast.exports.model import (
    ExportJob,
    JobState,
    JobStatus,
    TaskToken,
)
from holdfast.exports.orchestrator import HeartbeatOrchestrator
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.runner import JobHeartbeats, NoHeartbeats
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.telemetry.logging import make_line_log
from support.exports.simulated_step_functions import SimulatedStepFunctions
from support.exports.stage import JOB, JobStage

# -- values


@pytest.mark.requirement("R004-115", "R004-163")
def test_a_state_is_made_from_its_status_and_its_counters() -> None:
    state = JobState.create("DOWNLOADING", total_tasks=100, completed_tasks=50, failed_tasks=2)
    assert state == JobState(JobStatus.DOWNLOADING, 100, 50, 2)
    assert state.processed_tasks == 52
    assert JobState.create() == JobState(JobStatus.PROCESSING, 0, 0, 0)
    with pytest.raises(ValueError, match="failed_tasks"):
        JobState.create(failed_tasks=-1)
    with pytest.raises(ValueError, match="CANCELLED"):
        JobState.create("CANCELLED")


@pytest.mark.requirement("R004-164")
def test_a_job_knows_whether_it_has_a_task_token() -> None:
    state = JobState.create("DOWNLOADING")
    with_token = ExportJob.create("j", "e", "u", job_state=state, task_token="AAAA")
    assert with_token.has_task_token()
    assert with_token.task_token == TaskToken("AAAA")
    assert (with_token.job_id, with_token.export_id, with_token.user_id) == ("j", "e", "u")
    assert with_token.state is state
    assert not ExportJob.create("j", "e", "u").has_task_token()


@pytest.mark.requirement("R004-151")
@pytest.mark.parametrize(
    ("completed", "total", "percent"),
    [(0, 0, 0), (0, 9, 0), (1, 3, 33), (2, 3, 67), (54, 100, 54), (9, 9, 100)],
)
def test_percent_is_rounded_and_zero_without_tasks(
    completed: int, total: int, percent: int
) -> None:
    assert JobState(JobStatus.DOWNLOADING, total, completed).percent == percent


SEEDS_OPERATIONS = {
    "save",
    "find_by_id",
    "find_by_status",
    "update_job_state",
    "update_job_status",
    "increment_completed_tasks",
    "increment_failed_tasks",
    "set_total_tasks",
}


@pytest.mark.requirement("R004-186")
def test_the_store_is_an_abstract_class_with_the_seeds_operations() -> None:
    with pytest.raises(TypeError, match="abstract"):
        JobStateRepository(SYSTEM_CLOCK, None)  # type: ignore[abstract]
    assert vars(JobStateRepository).keys() >= SEEDS_OPERATIONS


# -- from the message to the row


class Stage(JobStage):
    """A store, Step Functions and a runner whose pool does tasks at once."""

    def __init__(self, step_functions: type[SimulatedStepFunctions]) -> None:
        super().__init__(step_functions=step_functions)
        self.token = self.step_functions.open()
        self.seen: list[ExportJob | None] = []  # while tasks are being listed

    def run(self, heartbeats: JobHeartbeats) -> ExportJob:
        """Run the job of the seed's message to its end."""
        message = {"jobId": JOB, "exportId": "export-456", "userId": "user-789"}
        request = JobRequest.parse({**message, "taskToken": self.token.reveal()})
        return self.make_runner(heartbeats, self._listing).run(request, lost=Flag())

    def make_job(self) -> ExportJob:
        """Return the same job as it is when its message comes."""
        ids, now = (JOB, "export-456", "user-789"), self.clock.time()
        return ExportJob.create(*ids, task_token=self.token, now=now)

    def _listing(self, request: JobRequest) -> Iterator[TaskSpec]:
        self.seen.append(self.jobs.find_by_id(request.job_id))
        yield TaskSpec(url="https://files.example/a")


@pytest.mark.requirement(
    "R004-078",
    "R004-081",
    "R004-082",
    "R004-083",
    "R004-084",
    "R004-085",
    "R004-086",
    "R004-087",
)
def test_a_job_is_stored_as_processing_with_its_token_before_tasks_are_listed() -> None:
    """Read while the tasks are being listed."""
    stage = Stage(SimulatedStepFunctions)
    began_at = stage.clock.time()
    assert stage.run(NoHeartbeats()).status is JobStatus.COMPLETED
    state = JobState(JobStatus.PROCESSING, total_tasks=0, completed_tasks=0)
    assert stage.seen == [replace(stage.make_job(), state=state, created_at=began_at)]


class RefusedHeartbeats(SimulatedStepFunctions):
    """Refuses every heartbeat."""

    def send_task_heartbeat(self, token: TaskToken) -> None:
        raise CallbackRefused("denied")


@pytest.mark.requirement("R004-156", "R004-221", "R004-269")
def test_a_job_whose_heartbeats_all_fail_is_completed() -> None:
    stage, emitted = Stage(RefusedHeartbeats), list[Event]()
    orchestrator = HeartbeatOrchestrator(
        stage.jobs,
        stage.step_functions,
        token_closed=lambda job, code: None,
        events=Events(emitted.append),
        clock=stage.clock,
    )
    orchestrator.beat_now(stage.make_job())
    assert orchestrator.trigger_heartbeat() == 1
    assert stage.run(orchestrator).status is JobStatus.COMPLETED
    orchestrator.stop()
    assert [event.code for event in emitted if isinstance(event, ev.HeartbeatFailed)] == [
        "CallbackRefused"
    ]
    assert [sent.kind for sent in stage.step_functions.accepted] == ["success"]


# -- logs


JOB_EVENTS = [
    kind
    for kind in vars(ev).values()
    if isinstance(kind, type) and issubclass(kind, ev.JobEvent) and kind is not ev.JobEvent
]


@pytest.mark.requirement("R004-108", "R004-271")
@pytest.mark.parametrize("kind", JOB_EVENTS, ids=lambda kind: kind.__name__)
def test_every_log_line_of_a_job_has_its_id(kind: Callable[..., Event]) -> None:
    lines: list[str] = []
    names = [name for name in kind.__dataclass_fields__ if name != "job_id"]  # type: ignore[attr-defined]
    make_line_log(lines.append, min_level=logging.DEBUG)(
        kind("abc-123", **dict.fromkeys(names, 1))
    )
    assert " job_id=abc-123" in lines[0]


@pytest.mark.requirement(
    "R004-092",
    "R004-096",
    "R004-110",
    "R004-112",
    "R004-117",
    "R004-136",
    "R004-146",
    "R004-155",
    "R004-169",
    "R004-236",
    "R004-240",
)
@pytest.mark.parametrize(
    ("event", "level", "line"),
    [
        (ev.JobSealed("j", 9), logging.INFO, "event=job_sealed job_id=j total_tasks=9"),
        (
            ev.JobFinished("j", "COMPLETED", 9, 0, None),
            logging.INFO,
            "event=job_finished job_id=j status=COMPLETED completed_tasks=9 failed_tasks=0",
        ),
        (
            ev.TaskFailed("j", "t", "Http404"),
            logging.WARNING,
            "event=task_failed job_id=j task_id=t code=Http404",
        ),
        (
            ev.HeartbeatFailed("j", "ThrottlingException", 0.1),
            logging.WARNING,
            "event=heartbeat_failed job_id=j code=ThrottlingException",
        ),
        (ev.OrchestratorStopping(2), logging.INFO, "event=orchestrator_stopping in_flight=2"),
        (ev.OrchestratorStopped(), logging.INFO, "event=orchestrator_stopped"),
        (ev.ActiveJobs(3, 1), logging.INFO, "event=active_jobs with_token=3 without_token=1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Event) else None,
)
def test_log_lines_have_the_fields_of_the_seed(event: Event, level: int, line: str) -> None:
    lines: list[str] = []
    make_line_log(lines.append, min_level=logging.DEBUG)(event)
    assert line in lines[0]
    assert event.get_level() == level
